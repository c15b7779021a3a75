"""What a study's file says, checked before anything runs; `fedmpi/studies/README.md` has an example.

The digest is that of the file's bytes. Every run notes it when it begins, with the hash of its own config, so a file
that has changed since is refused, as is one whose runs begin from configs that have changed.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from fedmpi.config import explain, yaml_text
from fedmpi.config.explain import Problem
from fedmpi.config.fields import Count, NotNegative, Section, Share
from fedmpi.config.load import MAX_BYTES
from fedmpi.disk.plain import read_bytes
from fedmpi.errors import ConfigError, reason

Quantity = Literal[
    "accuracy", "train_loss", "bytes", "bytes_to_target", "macs_to_target", "rounds_to_target", "seconds", "time_share"
]
_NAME = re.compile(r"[\w-]{1,40}", re.ASCII)
Settings = Mapping[str, Any]
"""Sections of a config, as `{train: {lr: 0.1}}`."""
MOST_SEEDS = 16
"""The exact tests (`evidence.py`) hold a row of numbers for each of the 2^n sets of n seeds: 8 MB for 16."""
Seeds = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=2**63)], ...], Field(strict=False, min_length=1, max_length=MOST_SEEDS)
]
Grid = Annotated[tuple[dict[str, list[Any]], ...], Field(strict=False)]


class Measure(Section):
    """A number that a run ends with."""

    quantity: Quantity
    """What is measured. `bytes` is what all clients move in a run; `seconds` is the mean duration of a round, or of the
    stage that `net` names; `time_share` is that stage's share of a round.
    """
    net: str = "largest"
    """The tested net: its name, `largest`, `smallest`, `mean` over the tested nets, or `clients`, the mean over the
    clients' own nets.
    """
    of: Literal["last", "best"] = "last"
    """The last round's value, or that of the best round."""
    target: Share | None = None
    """The accuracy to reach, for `..._to_target`."""

    @property
    def is_share(self) -> bool:
        """Whether the number is shown in percent, and its differences in points."""
        return self.quantity in ("accuracy", "time_share")

    @property
    def is_seconds(self) -> bool:
        """Whether the number is shown in seconds."""
        return self.quantity == "seconds"

    @property
    def is_of_a_net(self) -> bool:
        """Whether a tested net has it; else the run as a whole, also one whose clients alone have nets."""
        return self.quantity == "accuracy" or self.is_to_target

    @property
    def is_to_target(self) -> bool:
        """Whether a run may never have it: one that does not reach the target."""
        return self.quantity.endswith("_to_target")

    @property
    def sign(self) -> int:
        """1 where more is better, else -1."""
        return 1 if self.quantity == "accuracy" else -1


class Condition(Section):
    """What must hold as well."""

    measure: str
    """The name of a measure."""
    margin: NotNegative = 0.0
    """By how much the first method may be worse, in the measure's unit (0.005 is half a point of accuracy)."""
    by: Literal["test", "mean"] = "test"
    """`test`: it must be significant, too. `mean`: the mean difference decides, an estimate, and the report says so."""


class Question(Section):
    """One sentence that the study answers, in each of its settings."""

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
    settings: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """The settings in which it is asked; empty means all."""
    primary: bool = True
    """Whether it is tested. Of a secondary question the numbers are reported; it does not count for Holm's correction.
    """
    undecidable: str = ""
    """Why no run that is possible here can answer it; such a question has no methods."""

    @property
    def parts(self) -> tuple[Condition, ...]:
        """The primary measure, then the conditions."""
        return (Condition(measure=self.measure, margin=self.margin), *self.provided)


class Compared(Section):
    """A method of the study."""

    config: str = ""
    """A config file of its own, relative to the study's folder; empty takes the study's."""
    set: dict[str, Any] = {}
    """Settings on top of the config, as `{method: {name: fedhm}}`."""
    grid: Grid = ()
    """Values to choose from on validation data: a list of mappings, as `[{train.lr: [0.05, 0.1]}]`. Each mapping gives
    all combinations of its values. All methods have the same number of trials.
    """

    @property
    def trials(self) -> tuple[dict[str, Any], ...]:
        """The combinations, in the order of the file."""
        return tuple(
            dict(zip(values, combination, strict=True))
            for values in self.grid
            for combination in itertools.product(*values.values())
        )


class Tuning(Section):
    """How each method's trial is chosen, in each setting."""

    seeds: Seeds
    """Seeds of the trials; other ones than those of the final runs."""
    measure: str
    """The name of the measure that chooses, on validation data."""
    validation_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The share of every client's training examples on which trials are tested (`evaluation.validation_share`)."""
    set: dict[str, Any] = {}
    """Settings of all trials on top of the others, as fewer rounds."""


class Asked(Section):
    """The whole file."""

    title: str
    """What the study is about, in one line."""
    config: str = ""
    """The config that the runs begin from, relative to the study's folder; empty takes the defaults of the schema."""
    set: dict[str, Any] = {}
    """Settings of all runs, as `{rounds: 20, train: {lr: 0.1}}`."""
    settings: dict[str, dict[str, Any]] = {"all": {}}
    """The settings in which methods are compared, by name."""
    methods: dict[str, Compared] = {}
    """The methods, by name."""
    seeds: Seeds
    """Seeds of the final runs. For one seed all methods have the same partition, cohorts and initial values."""
    tuning: Tuning | None = None
    """How settings are chosen; without it methods run as they stand."""
    measures: dict[str, Measure] = {}
    """What is measured, by name: primary where a question names it, secondary elsewhere."""
    questions: Annotated[tuple[Question, ...], Field(strict=False, min_length=1)]
    """What the study asks. All primary questions in all their settings are one family for Holm's correction."""
    alpha: Share = 0.05
    """The level of the tests."""
    longest_run_s: Count = 1800
    """How long a run should take at most; `--status` names longer ones."""

    def mistakes(self) -> Iterator[tuple[yaml_text.Path, str]]:
        """(path, what is wrong) of all that a single key does not tell."""
        yield from self._names()
        yield from self._tuning()
        for place, question in enumerate(self.questions):
            yield from self._question(("questions", place), question)
        for name, measure in self.measures.items():
            if (measure.target is None) == measure.is_to_target:
                has = "needs a target" if measure.target is None else "takes no target"
                yield ("measures", name), f"{measure.quantity} {has}"

    def _names(self) -> Iterator[tuple[yaml_text.Path, str]]:
        for section in ("settings", "methods", "measures"):
            for name in getattr(self, section):
                if not _NAME.fullmatch(name):
                    yield (section, name), "a name has at most 40 letters, digits, - and _"
        given: dict[yaml_text.Path, tuple[int, ...]] = {("seeds",): self.seeds}
        if self.tuning is not None:
            given["tuning", "seeds"] = self.tuning.seeds
        for path, seeds in given.items():
            if twice := [seed for seed in seeds if seeds.count(seed) > 1]:
                yield path, f"seed {twice[0]} is given twice"

    def _tuning(self) -> Iterator[tuple[yaml_text.Path, str]]:
        counts = {name: len(method.trials) for name, method in self.methods.items()}
        if self.tuning is None:
            for name in (name for name, count in counts.items() if count):
                yield ("methods", name, "grid"), "a grid, but there is no `tuning` that says how to choose"
            return
        if len(set(counts.values())) > 1:
            found = ", ".join(f"{name} {count}" for name, count in counts.items())
            yield ("methods",), f"numbers of trials differ: {found}; give every method's grid the same number"
        elif set(counts.values()) == {0}:
            yield ("tuning",), "no method has a grid, so there is nothing to choose; leave `tuning` away"
        if self.tuning.measure not in self.measures:
            yield ("tuning", "measure"), _unknown(self.tuning.measure, self.measures)
        if shared := sorted({*self.tuning.seeds} & {*self.seeds}):
            yield ("tuning", "seeds"), f"seed {shared[0]} is one of the final seeds, too; take others"

    def _question(self, path: yaml_text.Path, question: Question) -> Iterator[tuple[yaml_text.Path, str]]:
        if question.undecidable:
            if question.first or question.second or question.measure:
                yield path, "an undecidable question has no methods and no measure"
            return
        for key in ("first", "second"):
            if getattr(question, key) not in self.methods:
                yield (*path, key), _unknown(getattr(question, key), self.methods)
        if question.first == question.second:
            yield (*path, "second"), "is the same method as `first`"
        for place, part in enumerate(question.parts):
            if part.measure not in self.measures:
                own = ("measure",) if place == 0 else ("provided", place - 1, "measure")
                yield (*path, *own), _unknown(part.measure, self.measures)
        for place, setting in enumerate(question.settings):
            if setting not in self.settings:
                yield (*path, "settings", place), _unknown(setting, self.settings)

    @property
    def num_tests(self) -> int:
        """Primary questions in all their settings: the family for Holm's correction."""
        return sum(len(self.settings_of(question)) for question in self.questions if question.primary)

    def settings_of(self, question: Question) -> tuple[str, ...]:
        """Those in which a question is asked; none for one that cannot be decided."""
        return () if question.undecidable else question.settings or tuple(self.settings)


@dataclass(frozen=True)
class Study:
    """A study's file that was read."""

    path: Path
    text: str
    asked: Asked

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def digest(self) -> str:
        """SHA-256 of the file's text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def read(path: Path) -> Study:
    """Raises `ConfigError`: no such file, or a line for each problem in it."""
    try:
        text = read_bytes(path, MAX_BYTES).decode()
        document = yaml_text.parse(text)
    except yaml_text.YamlError as error:
        raise ConfigError(str(path), str(error)) from None
    except (OSError, ValueError) as error:
        why = reason(error)
        raise ConfigError(str(path), f"cannot be read: {why}; give the YAML file of a study") from None
    if not isinstance(document.value, dict):
        raise ConfigError(str(path), f"expected a study (title, seeds, questions), got {explain.found(document.value)}")
    asked, problems = _validated(document.value)
    if asked is None or problems:
        raise ConfigError(str(path), *(_line(problem, document) for problem in problems))
    return Study(path, text, asked)


def _validated(values: dict[str, Any]) -> tuple[Asked | None, list[Problem]]:
    try:
        asked = Asked.model_validate(explain.completed(Asked, values))
    except ValidationError as error:
        return None, explain.problems(Asked, error, (), dict)
    return asked, [Problem(path, text) for path, text in asked.mistakes()]


def _line(problem: Problem, document: yaml_text.Document) -> str:
    """`questions[0].first (line 12): no ...`."""
    around = (document.origins.get(problem.path[:length]) for length in range(len(problem.path), 0, -1))
    origin = next(filter(None, around), "")
    return f"{explain.dotted(problem.path)}{f' ({origin})' if origin else ''}: {problem.text}"


def _unknown(name: str, known: Mapping[str, object]) -> str:
    return f"no {explain.found(name)}.{explain.suggest(name, known)} Known: {explain.listed(known) or 'none'}"
