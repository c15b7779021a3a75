"""The schema of a grid file, which says which runs to make and what to report (`README.md` has an example), and its
runs: their names and configs.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr, ValidationError, model_validator

from fedmpi.config import explain, yaml_text
from fedmpi.config.address import file_and_cell
from fedmpi.config.explain import Problem
from fedmpi.config.fields import Folder, NotNegative, Section, Share
from fedmpi.config.load import Override, load, read_yaml, report
from fedmpi.config.schema import Config
from fedmpi.config.schema import settings as settings_of
from fedmpi.config.yaml_text import Tree
from fedmpi.errors import ConfigError
from fedmpi.results import printed
from fedmpi.results.printed import Printed, Quantity
from fedmpi.store.files import user_path

# None of these changes a result: a grid reads the records alone.
_QUIET = {"output": {"tensorboard": False, "report": False, "progress": "plain", "keep_checkpoints": 1}}
MOST_SEEDS = 16
"""The exact tests (`evidence.py`) hold a row of numbers for each of the 2^n sets of n seeds: 8 MB for 16."""


def _each_once(seeds: tuple[int, ...]) -> tuple[int, ...]:
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise ValueError(f"seed {seed} is given twice")
    return seeds


Seeds = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=2**63)], ...],
    Field(strict=False, min_length=1, max_length=MOST_SEEDS),
    AfterValidator(_each_once),
]
Name = Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,40}$")]
_SCORES = ("accuracy", "f1_macro", "auc", "top5", "r2")
"""Shares of which more is better."""


class Measure(Section):
    """A number that a run ends with."""

    quantity: Quantity | Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]
    """A metric of the user's (`evaluation.metrics`) has its name there, and more of it is better."""
    net: str = "largest"
    """The tested net: its name, `largest`, `smallest`, `mean` (over all), or `clients` (the mean of their own); of
    `seconds` and `time_share` the stage of a round.
    """
    of: Literal["last", "best"] = "last"
    """The round whose value counts."""
    target: Share | None = None
    """The accuracy to reach, for `..._to_target`."""

    @model_validator(mode="after")
    def _has_target(self) -> Measure:
        if (self.target is None) == self.is_to_target:
            raise ValueError(f"{self.quantity} {'needs a' if self.is_to_target else 'takes no'} target")
        return self

    @property
    def is_share(self) -> bool:
        """Returns True for a number that is shown in percent, its differences in points."""
        return self.quantity in (*_SCORES, "time_share")

    @property
    def is_to_target(self) -> bool:
        """Returns True for a number that a run may never have, because it does not reach the target."""
        return self.quantity.endswith("_to_target")

    @property
    def sign(self) -> int:
        """Returns 1 where more is better, else -1."""
        return 1 if self.quantity in _SCORES or ":" in self.quantity else -1


class Condition(Section):
    """A measure that must hold as well."""

    measure: str
    """The name of the measure."""
    margin: NotNegative = 0.0
    """By how much the first method may be worse, in the measure's unit (0.005 is half a point of accuracy)."""
    by: Literal["test", "mean"] = "test"
    """`test`: the difference must be significant. `mean`: the mean difference decides, and the report says so."""


class Question(Section):
    """A sentence that the report answers in each of its settings."""

    ask: str
    """The question, as the report prints it."""
    first: str = ""
    """The method that is expected to be better."""
    second: str = ""
    """The method that it is compared with, seed by seed."""
    measure: str = ""
    """The name of the primary measure."""
    margin: NotNegative = 0.0
    """0 asks whether `first` is better. A positive number asks whether it is worse by less than that."""
    provided: Annotated[tuple[Condition, ...], Field(strict=False)] = ()
    """Conditions on the same two methods; the answer is yes only where all of them hold, too."""
    primary: bool = True
    """A secondary question has numbers and no test, and Holm's correction leaves it out."""
    undecidable: str = ""
    """Why no run that is possible here can answer it; such a question has no methods."""

    @model_validator(mode="after")
    def _has_methods(self) -> Question:
        if self.undecidable and (self.first or self.second or self.measure):
            raise ValueError("an undecidable question has no methods and no measure")
        if not self.undecidable and self.first == self.second:
            raise ValueError("`first` and `second` are the same method")
        return self

    @property
    def parts(self) -> tuple[Condition, ...]:
        """Returns the primary measure, then the conditions."""
        return (Condition(measure=self.measure, margin=self.margin), *self.provided)


class Method(Section):
    """A method of the grid."""

    extends: str = ""
    """Another method, whose `set` stands below this one's."""
    config: Folder = ""
    """A config file of its own, relative to the grid file's folder; empty takes the grid's."""
    set: dict[str, Any] = {}
    """Settings on top of the config, as `{method: {name: fedhm}}`."""
    grid: Annotated[tuple[dict[str, list[Any]], ...], Field(strict=False)] = ()
    """Values to choose from on validation data, as `[{train.lr: [0.05, 0.1]}]`: all combinations of each mapping's."""

    @property
    def trials(self) -> tuple[dict[str, Any], ...]:
        """Returns the combinations, in the order of the file."""
        return tuple(
            dict(zip(values, combination, strict=True))
            for values in self.grid
            for combination in itertools.product(*values.values())
        )


class Tuning(Section):
    """How the grid chooses each method's trial, in each setting."""

    seeds: Seeds
    """Seeds of the trials; other ones than those of the final runs."""
    measure: str
    """The name of the measure that chooses, on validation data."""
    set: dict[str, Any] = {}
    """Settings of all trials on top of the others, as fewer rounds."""


class Grid(Section):
    """A grid file."""

    title: str
    """What the grid is about, in one line."""
    source: str = ""
    """The paper that the grid reproduces."""
    config: Folder = ""
    """The config that the runs begin from, relative to the file's folder; empty takes the defaults of the schema."""
    set: dict[str, Any] = {}
    """Settings of all runs, as `{rounds: 20, train: {lr: 0.1}}`."""
    settings: dict[Name, dict[str, Any]] = {"all": {}}
    """The settings in which methods are compared, by name; `extends: NAME` puts another setting below."""
    methods: dict[Name, Method] = {}
    seeds: Seeds
    """Seeds of the final runs. For one seed all methods have the same partition, cohorts and initial values."""
    tuning: Tuning | None = None
    """How settings are chosen; without it methods run as they stand."""
    measures: dict[Name, Measure] = {}
    """What the report measures, by name; empty takes `DEFAULT_MEASURES`."""
    questions: Annotated[tuple[Question, ...], Field(strict=False)] = ()
    printed: Printed = {}
    """The tables and figures of a paper; the runs are those that they name."""
    _path: Path = PrivateAttr(Path())

    @property
    def path(self) -> Path:
        return self._path

    @property
    def digest(self) -> str:
        """Returns the SHA-256 of what is fixed before the runs; addresses of configs may change, their values not."""
        free: Any = {"title": True, "source": True, "config": True, "printed": True, "methods": {"__all__": {"config"}}}
        fixed = self.model_dump(mode="json", exclude_defaults=True, exclude=free)
        return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()

    @property
    def num_tests(self) -> int:
        """Returns the number of primary questions in all their settings: the family for Holm's correction."""
        tested = [question for question in self.questions if question.primary and not question.undecidable]
        return len(tested) * len(self.settings)

    def mistakes(self) -> Iterator[tuple[yaml_text.Path, str]]:
        """Yields (path, what is wrong) of all that a single key does not tell."""
        for path, name, known in self._names():
            if name not in known:
                allowed = f"{explain.suggest(name, known)} Allowed: {', '.join(sorted(known)) or 'none'}"
                yield path, f"{yaml_text.found(name)} cannot stand here.{allowed}"
        counts = {name: len(method.trials) for name, method in self.methods.items()}
        found = ", ".join(f"{name} {count}" for name, count in counts.items())
        if self.tuning is None and any(counts.values()):
            yield ("methods",), f"grids, but no `tuning` that says how to choose; trials: {found}"
        elif self.tuning is not None and (0 in counts.values() or len({*counts.values()}) > 1):
            yield ("methods",), f"with `tuning` all methods have a grid of as many trials; found: {found}"
        if self.tuning is not None and (shared := {*self.seeds} & {*self.tuning.seeds}):
            yield ("tuning", "seeds"), f"{sorted(shared)} are final seeds, too; take others"

    def _names(self) -> Iterator[tuple[yaml_text.Path, str, Collection[str]]]:
        """Yields each name that stands for another entry of the file: its path, itself, and the known ones."""
        for place, question in enumerate(self.questions):
            path = ("questions", place)
            if not question.undecidable:
                yield (*path, "first"), question.first, self.methods
                yield (*path, "second"), question.second, self.methods
                yield (*path, "measure"), question.measure, self.measures
            for number, condition in enumerate(question.provided):
                yield (*path, "provided", number, "measure"), condition.measure, self.measures
        if self.tuning is not None:
            yield ("tuning", "measure"), self.tuning.measure, self.measures
        for key, section in (("settings", self.settings), ("methods", self.methods)):
            for name in section:
                # An entry that extends this one is no base for it.
                others = [other for other in section if name not in _chain(other, section)]
                if base := _base(name, section):
                    yield (key, name, "extends"), base, others
        yield from printed.names(self.printed, self.settings, self.methods)


def _base(name: str, section: Mapping[str, Any]) -> str:
    """Returns which entry of `settings` or `methods` an entry extends; '' for none."""
    return str(dict(section.get(name, {})).get("extends", ""))


def _chain(name: str, section: Mapping[str, Any]) -> list[str]:
    """Returns a name behind all that it extends, each once."""
    chain = [name]
    while (base := _base(chain[0], section)) and base not in chain:
        chain.insert(0, base)
    return chain


DEFAULT_MEASURES = {
    "largest": Measure(quantity="accuracy"),
    "smallest": Measure(quantity="accuracy", net="smallest"),
    "clients": Measure(quantity="accuracy", net="clients"),
    "bytes": Measure(quantity="bytes"),
    "macs": Measure(quantity="macs"),
    **{
        f"{cost}_to_90": Measure(quantity=f"{cost}_to_target", target=0.9)
        for cost in ("bytes", "macs", "rounds", "simulated_s", "simulated_j")
    },
}
"""What the report measures where a file names no measure."""


def read(path: Path) -> Grid:
    """Reads a grid file. Raises `ConfigError`: no such file, or a line for each problem in it."""
    return grid_of(path, read_yaml(path, str(path)))


def grid_of(path: Path, tree: Tree) -> Grid:
    """Returns the grid of a file with this content, as `read` does."""
    values = tree.value
    if not isinstance(values, dict):
        raise ConfigError(str(path), f"expected a grid (title, methods, seeds), got {yaml_text.found(values)}")
    try:
        grid = Grid.model_validate(values)
        problems = [Problem(place, what) for place, what in grid.mistakes()]
    except ValidationError as error:
        problems = explain.problems(Grid, error, values)
    if problems:
        raise report(str(path), tree, problems)
    grid = grid.model_copy(update={"measures": grid.measures or DEFAULT_MEASURES})
    grid._path = path
    return grid


def not_alike(configs: Mapping[str, Config]) -> Iterator[str]:
    """Yields a line for each setting outside the methods' own section that the configs of methods do not share, as
    `train.lr is 0.5; hermes 0.1`: the value that most have, then the others.
    """
    plain = {method: settings_of(config.to_dict()) for method, config in configs.items()}
    for key in next(iter(plain.values()), {}):
        values = {method: own[key] for method, own in plain.items() if key in own}
        common, *others = sorted(methods_by(values).items(), key=lambda item: -len(item[1]))
        if others and len(values) == len(plain) and not key.startswith("method."):
            parts = [common[0], *(f"{', '.join(methods)} {text}" for text, methods in others)]
            yield f"not alike: {key} is {'; '.join(parts)}"


def methods_by(values: Mapping[str, str]) -> dict[str, list[str]]:
    """Returns the methods that have each of these values."""
    methods: dict[str, list[str]] = {}
    for method, text in values.items():
        methods.setdefault(text, []).append(method)
    return methods


@dataclass(frozen=True)
class GridRun:
    """One run. `trial` counts the method's trials from 0; it is None for a method without."""

    phase: Literal["tuning", "final"]
    setting: str
    method: str
    trial: int | None
    seed: int

    @property
    def name(self) -> str:
        """Returns the name of the run's folder."""
        trial = f"-trial{self.trial}" if self.phase == "tuning" else ""
        return f"{self.phase}-{self.setting}-{self.method}{trial}-seed{self.seed}"

    @property
    def address(self) -> str:
        return f"{self.setting}/{self.method}"


def trials(grid: Grid) -> list[GridRun]:
    """Lists all tuning runs, seed by seed and method by method, so that an early look shows all methods."""
    if grid.tuning is None:
        return []
    return [
        GridRun("tuning", setting, method, trial, seed)
        for setting in grid.settings
        for seed in grid.tuning.seeds
        for method, section in grid.methods.items()
        for trial in range(len(section.trials))
    ]


def finals(grid: Grid, chosen: Mapping[tuple[str, str], int]) -> list[GridRun]:
    """Lists all final runs with the chosen trials by setting and method; those of the first seed first."""
    addresses = [f"{setting}/{method}" for setting in grid.settings for method in grid.methods]
    if grid.printed:
        addresses = printed.runs(grid.printed)
    pairs = [address.split("/") for address in addresses]
    return [
        GridRun("final", setting, method, chosen.get((setting, method)), seed)
        for seed in grid.seeds
        for setting, method in pairs
    ]


def base_of(grid: Grid, setting: str, method: str) -> tuple[Path | None, Tree]:
    """Returns the config that the runs of a method begin from in a setting, and what is set on it; None stands for the
    defaults of the schema.
    """
    path: str | Path | None = None
    tree = Tree({})
    if address := grid.methods[method].config or grid.config:
        path, tree = _base_at(str(grid.path.parent / user_path(address)))
    of_setting = [grid.settings[name] for name in _chain(setting, grid.settings)]
    of_method = [grid.methods[name].set for name in _chain(method, grid.methods)]
    for layer in (grid.set, *of_setting, *of_method):
        own = {key: value for key, value in layer.items() if key != "extends"}
        tree = tree.with_top(Tree.of(own, str(grid.path)))
    return None if path is None else Path(path).resolve(), tree


def _base_at(address: str) -> tuple[str | Path | None, Tree]:
    """Returns the plain file at an address, or the base of the run that it names. Raises `ConfigError`."""
    file, cell = file_and_cell(address)
    if cell is None or "/" not in cell:
        return address, Tree({})
    grid = read(Path(file))
    setting, _, method = cell.partition("/")
    for name, section in ((setting, grid.settings), (method, grid.methods)):
        if name not in section:
            known = f"Known: {', '.join(sorted(section))}"
            raise ConfigError(address, f"no {yaml_text.found(name)}.{explain.suggest(name, section)} {known}")
    return base_of(grid, setting, method)


def load_address(address: str | None, given: Sequence[Override] = ()) -> Config:
    """Returns the config of a run of a grid file, `FILE.yaml@SETTING/METHOD`, or as `load` does that of a plain file.
    Raises `ConfigError`.
    """
    if address is None:
        return load(None, given)
    path, below = _base_at(address)
    config = load(path, given, below=below)
    config._where = address
    return config


def config_of(grid: Grid, run: GridRun, given: Sequence[Override] = ()) -> Config:
    """Returns the config of a run, with the overrides on top. Raises `ConfigError`."""
    path, tree = base_of(grid, run.setting, run.method)
    if run.trial is not None:
        values = grid.methods[run.method].trials[run.trial]
        settings = yaml_text.nested((tuple(key.split(".")), value) for key, value in values.items())
        tree = tree.with_top(Tree.of(settings, str(grid.path)))
    if run.phase == "tuning" and grid.tuning is not None:
        tree = tree.with_top(Tree.of(grid.tuning.set, str(grid.path)))
    on = "validation" if run.phase == "tuning" else "test"
    below = tree.with_top(Tree.of({**_QUIET, "seed": run.seed, "evaluation": {"on": on}}))
    return load(path, given, below=below)
