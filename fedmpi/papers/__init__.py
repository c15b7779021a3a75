"""What the papers print: tables, figures, and facts that can be checked without training; typed once, in <paper>.yaml.

`jobs/reproduce.py` puts our numbers beside those of the tables, `python -m fedmpi.verify` checks the
facts. All scalars are read as text, so that every number keeps the digits that were printed.

    tables:
      table3:
        title: ...
        quantity: accuracy        # what a cell is, see `Quantity`
        unit: "%"
        of: best                  # of the best round, or of the last
        rows: params              # row labels are printed sizes of the tested nets, facts by themselves
        blocks:                   # block (a figure's panel) -> column (its label) -> row -> cell
          CIFAR-10 IID:
            FedHM: {run: fedhm/table3.yaml@cifar10_iid_fedhm, cells: {11.17M: [1, 93.46], 4.16M: [0.5, 93.37]}}

A cell is [net, value], [net, value, override ...] or a mapping with the keys of `Cell`; `net` is the name of the
tested net in a run's records (`clients`: the mean over the clients' own nets). A value that the paper's text has lost
is `lost`, one that was only drawn is left out. A column without cells is a curve. What is said of a column holds for
each of its cells that says nothing else; a cell with a run of its own leaves the column's overrides.

Where a printed number is not ours, the record has ours as well (`ours`). It is never shown as a result:
`fedmpi.verify` expects to compute it again, and so notices a changed net there, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from fedmpi.errors import UserError, reason

PAPERS = ("fedhm", "prism", "hermes", "fdnnc")

Quantity = Literal[
    "accuracy",  # of the net `net` on the test set (`clients`: mean over the clients' own nets), times 100 if unit is %
    "accuracy_drop",  # that of the column `baseline` in the same block, less the cell's
    "train_loss",  # mean over the cohort
    "relative_cost",  # bytes moved, both ways, over those of the column (or row) `baseline`
    "terabytes",  # bytes moved in a run, 10^12
    "seconds",  # of one round, or of the stage `net`
    "bytes_to_target",  # bytes moved until the block's target is reached
    "macs_to_target",  # forward MACs x examples until the block's target is reached
    "kernels_needed",  # PriSM: the effective number of kernels of layer `net`, of the records' diagnostics
    "clients_per_kernel",  # PriSM: how many clients of a cohort train each kernel of layer `net`
    "computed",  # by fedmpi.verify, from nets that are built: no run
    "inference_time",  # jobs/measure_pruned.py: dense over pruned
    "inference_energy",
]
Progress = Literal["round", "bytes", "uploaded_parameters", "mega_parameters"]
Setting = Literal["keep_ratio", "clients_per_round", "local_epochs", "samples"]
Axis = Progress | Setting | Literal["relative_cost", "kernel", "params", "stage", "method"]
"""What a figure's x axis has. `mega_parameters`: those moved both ways, in 1024 millions (FedHM's "GB")."""
Verdict = Literal["equal", "slip", "not_reproduced"]


class PapersError(UserError):
    """A data file of the papers that is not as it should be."""


_NUMBER = r"[-+]?[0-9]*\.?[0-9]+"
Number = Annotated[str, Field(pattern=rf"^{_NUMBER}$")]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Run(_Part):
    """A run: a config (its address under `configs/`) and overrides as on the command line."""

    config: str = Field(min_length=1)
    overrides: tuple[str, ...] = ()


class _Claimed(_Part):
    """What `fedmpi.verify` is told of a printed number, beside the number."""

    ours: str = ""
    """What it computed, where that is not what is printed: a number in the same unit, or a formula."""
    within: float | None = Field(default=None, gt=0)
    """Ours and the printed number differ by no more than this share of ours."""
    unchecked: str = ""
    """Why it cannot be checked."""


class Cell(_Claimed):
    """One number of a table, one point or bar of a figure; or (`row` empty) a curve."""

    block: str
    column: str
    row: str = ""
    run: Run | None = None
    net: str = ""
    value: str = Field("", alias="paper", pattern=rf"^({_NUMBER}|lost)$")
    """As printed, without unit, or `lost`; empty where the paper has only drawn it."""
    std: float | None = Field(None, ge=0)
    slip: str = ""
    """Why what is printed cannot be right, or what it really is."""
    not_reproduced: str = ""
    """Of a computed cell: in what it differs from ours."""
    ours: Number = ""

    @property
    def lost(self) -> bool:
        return self.value == "lost"

    @property
    def printed(self) -> str:
        """The value as printed, without unit; empty where the paper has only drawn it, or its text is lost."""
        return "" if self.lost else self.value

    @property
    def paper(self) -> float | None:
        return float(self.printed) if self.printed else None

    @property
    def verdict(self) -> Verdict:
        return "slip" if self.slip else "not_reproduced" if self.not_reproduced else "equal"

    @model_validator(mode="after")
    def _differs(self) -> Cell:
        if self.ours and self.verdict == "equal":
            raise ValueError("`ours` belongs to a slip, or to what is not reproduced")
        return self


class _Given(BaseModel):
    """What a file says of a cell, or of all cells of a column; the rest are keys of `Cell`."""

    model_config = ConfigDict(extra="allow")
    run: str = ""
    set: list[Annotated[str, Field(pattern="=")]] = []
    """Overrides."""


def _cell_of_list(given: Any) -> Any:
    if isinstance(given, list) and len(given) >= 2:
        return {"net": given[0], "paper": given[1], "set": given[2:]}
    if not isinstance(given, dict):
        raise ValueError(f"a cell is [net, value, override ...] or a mapping, got {given}")
    return given


class _Column(_Given):
    cells: dict[str, Annotated[_Given, BeforeValidator(_cell_of_list)]] = Field({"": _Given()}, min_length=1)


_Blocks = Mapping[str, Annotated[dict[str, _Column], Field(min_length=1)]]


class Axes(_Part):
    x: Axis
    y: Quantity
    x_label: str = ""
    y_label: str = ""


class Table(_Part):
    """A table or figure; a figure has `axes`."""

    name: str
    title: str
    quantity: Quantity
    unit: str = ""
    of: Literal["best", "last"] = "last"
    scale: float = Field(1.0, gt=0)
    """Ours is divided by it: FedHM's "GB" are 4.096e9 bytes."""
    rows: Literal["", "params"] = ""
    baseline: str = ""
    """What others in the same block are compared with: the cell of this column, or of this row in the same column."""
    targets: dict[str, Annotated[float, Field(gt=0, le=1)]] = {}
    """Accuracy to reach, by block."""
    kind: Literal["table", "curves", "bars", "scatter"] = "table"
    axes: Axes | None = None
    note: str = ""
    blocks: _Blocks = Field(min_length=1)

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """The cells in the paper's order."""
        return tuple(_cells(self.blocks))

    @property
    def runs(self) -> tuple[Run, ...]:
        """Those that it needs, each once, in the paper's order."""
        return tuple(dict.fromkeys(cell.run for cell in self.cells if cell.run is not None))

    @model_validator(mode="after")
    def _consistent(self) -> Table:
        if (self.kind == "table") != (self.axes is None):
            raise ValueError("`axes` belong to curves, bars and scatter, and to all of those")
        if self.axes is not None and self.axes.y != self.quantity:
            raise ValueError(f"axes.y is {self.axes.y}, but quantity is {self.quantity}")
        with_baseline = {cell.block for cell in self.cells if self.baseline in ("", cell.column, cell.row)}
        if without := [block for block in self.blocks if block not in with_baseline]:
            raise ValueError(f"baseline '{self.baseline}' is neither a column nor a row of {without[0]}")
        if self.quantity.endswith("_to_target") and set(self.targets) != set(self.blocks):
            raise ValueError(f"`targets` must name the blocks: {', '.join(self.blocks)}")
        return self


def _cells(blocks: _Blocks) -> Iterator[Cell]:
    """Each cell with what its column says of all of them. Raises ValueError that says which cell is malformed."""
    columns = ((block, column, shared) for block, of_block in blocks.items() for column, shared in of_block.items())
    for block, column, shared in columns:
        for row, own in shared.cells.items():
            run, overrides = own.run or shared.run, [*([] if own.run else shared.set), *own.set]
            said = {**(shared.model_extra or {}), **(own.model_extra or {})}
            said |= {"block": block, "column": column, "row": row}
            said |= {"run": {"config": run, "overrides": overrides}} if run or overrides else {}
            try:
                yield Cell.model_validate(said)
            except ValidationError as error:
                where = " / ".join(filter(None, (block, column, row)))
                raise ValueError("; ".join(f"{where}: {_problem(item)}" for item in error.errors())) from None


class Fact(_Claimed):
    """A printed number or formula that follows from the nets alone, or from the paper's own tables."""

    name: str
    where: str
    """Table or section."""
    what: str
    printed: str = ""
    """As printed: `11.17`, `>93` (more than that), or a formula in the names that its check uses."""
    same_as: str = ""
    """Where the number is a cell's: `table/block/column/row`."""
    unit: str = ""
    verdict: Verdict = "equal"
    why: str = ""

    @model_validator(mode="after")
    def _explained(self) -> Fact:
        if (self.verdict == "equal") == bool(self.why):
            raise ValueError("`why` belongs to a verdict other than `equal`, and to all of those")
        if bool(self.ours) != (self.verdict != "equal" and not self.unchecked):
            raise ValueError("`ours` belongs to a verdict other than `equal` that is checked, and to all of those")
        return self


class SizeSlip(_Part):
    """Why a row label is not the rounded size of its net, and the size, in millions."""

    why: str = Field(min_length=1)
    ours: Number


class Paper(_Part):
    """A paper: where it is to be found, and by name its tables and figures (`table3`, `figure4a`) and its facts."""

    name: str
    source: str
    tables: dict[str, Table] = Field(min_length=1)
    facts: dict[str, Fact] = {}
    size_slips: dict[str, SizeSlip] = {}
    """By `<data> <column> <row>`."""

    @field_validator("tables", "facts", mode="before")
    @classmethod
    def _name_parts(cls, parts: Any) -> Any:
        """Each part has its name as one of its values."""
        if not isinstance(parts, dict):
            return parts
        return {name: {**part, "name": name} if isinstance(part, dict) else part for name, part in parts.items()}

    def cell(self, path: str) -> Cell:
        """The cell `table/block/column/row`. Raises KeyError."""
        table, _, place = path.partition("/")
        return {f"{cell.block}/{cell.column}/{cell.row}": cell for cell in self.tables[table].cells}[place]


@cache
def read(paper: str) -> Paper:
    """The paper of this name, one of `PAPERS`. Raises `PapersError` for another name or a malformed file."""
    if paper not in PAPERS:
        raise PapersError("paper", f"no '{paper}'; allowed: {', '.join(PAPERS)}")
    return parse(paper, (files(__name__) / f"{paper}.yaml").read_text(encoding="utf-8"), f"{paper}.yaml")


def read_file(file: Path) -> Paper:
    """A paper out of a file of one's own, named by its stem."""
    try:
        return parse(file.stem, file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise PapersError(str(file), f"cannot be read: {reason(error)}") from None


def parse(name: str, text: str, where: str) -> Paper:
    """The paper `name` out of YAML; `where` is what errors call it."""
    try:
        document = yaml.load(text, _TextLoader)
        if not isinstance(document, dict):
            found = f"{document!r:.80}" if document else "nothing"
            raise PapersError(where, f"expected a mapping (source, tables, facts), got {found}")
        return Paper.model_validate({**document, "name": name})
    except yaml.YAMLError as error:
        raise PapersError(where, " ".join(str(error).split())) from None
    except ValidationError as error:
        raise PapersError(where, *map(_problem, error.errors())) from None


def _problem(item: Any) -> str:
    """The line of a problem: where it is, and what."""
    found = "" if item["type"] in ("missing", "value_error") else f", got {item['input']!r:.80}"
    text = item["msg"].removeprefix("Value error, ") + found
    return f"{'.'.join(map(str, item['loc']))}: {text}" if item["loc"] else text


class _TextLoader(yaml.BaseLoader):
    """All scalars as text; no key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        known = set()
        for key, _ in node.value:
            line = f"line {key.start_mark.line + 1}"
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.YAMLError(f"{line}: a key must be text")
            if key.value in known:
                raise yaml.YAMLError(f"{line}: {key.value} given twice")
            known.add(key.value)
        return super().construct_mapping(node, deep)
