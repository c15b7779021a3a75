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

A cell is [net, value], [net, value, override ...] or a mapping with the keys of `Cell`; `net` is the
name of the tested net in a run's records (`clients`: the mean over the clients' own nets). A value
that the paper's text has lost is `lost`, one that was only drawn is left out. A column without
cells is a curve. What is said of a column holds for each of its cells that says nothing else. What
is malformed is told by table, block, column and row.

Where a printed number is not ours, the record has ours as well (`ours`). It is never shown as a
result: it is what `fedmpi.verify` expects to compute again, so that it notices a changed net there, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedmpi.errors import UserError
from fedmpi.papers.form import TextLoader, check_keys, is_number, mapping, named, refuse

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
Axis = Literal[
    "round",
    "bytes",
    "uploaded_parameters",
    "mega_parameters",
    "relative_cost",
    "keep_ratio",
    "kernel",
    "clients_per_round",
    "local_epochs",
    "samples",
    "params",
    "stage",
    "method",
]
"""What a figure's x axis has. `mega_parameters`: those moved both ways, in 1024 millions (FedHM's "GB")."""
Verdict = Literal["equal", "slip", "not_reproduced"]


class PapersError(UserError):
    """A data file of the papers that is not as it should be."""


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
    within: float | None = Field(None, gt=0)
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
    printed: str = ""
    """As printed, without unit; empty where the paper has only drawn it, or its text is lost."""
    std: float | None = Field(None, ge=0)
    lost: bool = False
    slip: str = ""
    """Why what is printed cannot be right, or what it really is."""
    not_reproduced: str = ""
    """Of a computed cell: in what it differs from ours."""

    @property
    def paper(self) -> float | None:
        return float(self.printed) if self.printed else None

    @property
    def verdict(self) -> Verdict:
        return "slip" if self.slip else "not_reproduced" if self.not_reproduced else "equal"

    @model_validator(mode="after")
    def _differs(self) -> Cell:
        refuse(bool(self.ours) and self.verdict == "equal", "`ours` belongs to a slip, or to what is not reproduced")
        refuse(bool(self.ours) and not is_number(self.ours), f"ours: expected a number, got {self.ours!r}")
        return self


class Axes(_Part):
    x: Axis
    y: Quantity
    x_label: str = ""
    y_label: str = ""


class Table(_Part):
    """A table or figure. `cells` are in the paper's order; a figure has `axes`."""

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
    cells: tuple[Cell, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        """Those that it needs, each once, in the paper's order."""
        return tuple(dict.fromkeys(cell.run for cell in self.cells if cell.run is not None))

    @model_validator(mode="before")
    @classmethod
    def _flatten(cls, values: dict[str, Any]) -> dict[str, Any]:
        refuse("cells" in values, "unknown key 'cells'; they stand in the columns of `blocks`")
        own = {key: value for key, value in values.items() if key != "blocks"}
        return {**own, "cells": list(_cells(values.get("blocks")))}

    @model_validator(mode="after")
    def _consistent(self) -> Table:
        blocks = dict.fromkeys(cell.block for cell in self.cells)
        if (self.kind == "table") != (self.axes is None):
            raise ValueError("`axes` belong to curves, bars and scatter, and to all of those")
        if self.axes is not None and self.axes.y != self.quantity:
            raise ValueError(f"axes.y is {self.axes.y}, but quantity is {self.quantity}")
        for block in blocks if self.baseline else ():
            if not any(cell.block == block and self.baseline in (cell.column, cell.row) for cell in self.cells):
                raise ValueError(f"baseline '{self.baseline}' is neither a column nor a row of {block}")
        if self.quantity.endswith("_to_target") and set(self.targets) != set(blocks):
            raise ValueError(f"`targets` must name the blocks: {', '.join(blocks)}")
        return self


_CELL_KEYS = {*Cell.model_fields, "paper", "set"} - {"block", "column", "row", "printed", "lost"}
_COLUMN_KEYS = _CELL_KEYS - {"paper"} | {"cells"}


def _cells(blocks: Any) -> Iterator[Cell]:
    """Each cell with what its column says of all of them. Raises ValueError that says which cell is malformed."""
    for block, columns in mapping(blocks, "blocks", "block: {column: ...}").items():
        for column, content in mapping(columns, block, "column: {run: ..., cells: ...}").items():
            place = f"{block} / {column}"
            own = mapping(content, place, "run: ..., net: ..., cells: ...")
            check_keys(own, place, _COLUMN_KEYS)
            shared = {key: value for key, value in own.items() if key != "cells"}
            rows = mapping(own["cells"], f"{place}: cells", "row: [net, value]") if "cells" in own else {"": {}}
            for row, given in rows.items():
                where = f"{place} / {row}" if row else place
                try:
                    yield Cell(block=block, column=column, row=row, **_content(shared, _cell(given)))
                except ValidationError as error:
                    raise ValueError("; ".join(f"{where}: {_problem(item)}" for item in error.errors())) from None
                except ValueError as error:
                    raise ValueError(f"{where}: {error}") from None


def _content(shared: dict[str, Any], cell: dict[str, Any]) -> dict[str, Any]:
    """A cell on top of its column; one with a run of its own leaves the column's overrides."""
    found = {**shared, **cell}
    overrides = [*([] if "run" in cell else _overrides(shared)), *_overrides(cell)]
    refuse(bool(overrides) and "run" not in found, "set: there is no run to set it on")
    if "run" in found:
        found["run"] = {"config": found["run"], "overrides": overrides}
    found.pop("set", None)
    return found


def _overrides(given: dict[str, Any]) -> list[str]:
    overrides: list[str] = given.get("set", [])
    is_list = isinstance(overrides, list) and all(isinstance(one, str) and "=" in one for one in overrides)
    refuse(not is_list, f"set: expected a list, as [rounds=2, train.lr=0.1], got {overrides!r:.80}")
    return overrides


def _cell(cell: Any) -> dict[str, Any]:
    if isinstance(cell, list) and len(cell) >= 2:
        net, value, *overrides = cell
        cell = {"net": net, "paper": value, "set": overrides}
    if not isinstance(cell, dict):
        raise ValueError(f"a cell is [net, value, override ...] or a mapping, got {cell}")
    check_keys(cell, "", _CELL_KEYS)
    value = cell.get("paper", "")
    refuse(value not in ("", "lost") and not is_number(value), f"paper: expected a number, or lost, got {value!r}")
    said = {key: content for key, content in cell.items() if key != "paper"}
    return {**said, "lost": True} if value == "lost" else {**said, "printed": value}


class Fact(_Claimed):
    """A printed number or formula that follows from the nets alone, or from the paper's own tables."""

    id: str
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
    """Of a row label that is not the rounded size of its net: why, and the size, in millions."""

    why: str = Field(min_length=1)
    ours: str

    @model_validator(mode="after")
    def _counted(self) -> SizeSlip:
        refuse(not is_number(self.ours), f"ours: expected a number, got {self.ours!r}")
        return self


class Paper(_Part):
    """A paper: where it is to be found, its tables and figures by name (`table3`, `figure4a`), and its facts."""

    name: str
    source: str
    tables: dict[str, Table]
    facts: tuple[Fact, ...] = ()
    size_slips: dict[str, SizeSlip] = Field(default={})
    """By `<data> <column> <row>`."""

    @model_validator(mode="before")
    @classmethod
    def _name_tables(cls, values: dict[str, Any]) -> dict[str, Any]:
        tables = named(values.get("tables"), "tables", "name", "title: ..., quantity: ..., blocks: ...")
        facts = named(values["facts"], "facts", "id", "where: ..., what: ...") if "facts" in values else {}
        return {**values, "tables": tables, "facts": list(facts.values())}

    def cell(self, path: str) -> Cell:
        """The cell `table/block/column/row`. Raises KeyError."""
        table, _, place = path.partition("/")
        found = [cell for cell in self.tables[table].cells if f"{cell.block}/{cell.column}/{cell.row}" == place]
        if not found:
            raise KeyError(path)
        return found[0]

    def fact(self, key: str) -> Fact:
        """The fact of this id. Raises KeyError."""
        return {fact.id: fact for fact in self.facts}[key]


@cache
def read(paper: str) -> Paper:
    """The paper of this name, one of `PAPERS`. Raises `PapersError` for another name or a malformed file."""
    if paper not in PAPERS:
        raise PapersError("paper", f"no '{paper}'; allowed: {', '.join(PAPERS)}")
    file = files(__name__) / f"{paper}.yaml"
    return parse(paper, file.read_text(encoding="utf-8"), f"{paper}.yaml")


def read_file(file: Path) -> Paper:
    """A paper out of a file of one's own, named by its stem."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PapersError(str(file), f"cannot be read: {error}") from None
    return parse(file.stem, text, str(file))


def parse(name: str, text: str, where: str) -> Paper:
    """The paper `name` out of YAML; `where` is what errors call it."""
    try:
        document = yaml.load(text, TextLoader)
        if not isinstance(document, dict):
            found = f"{document!r:.80}" if document else "nothing"
            raise PapersError(where, f"expected a mapping (source, tables, facts), got {found}")
        if "name" in document:
            raise PapersError(where, "unknown key 'name'; a paper is called as its file")
        return Paper.model_validate({"name": name, **document})
    except yaml.YAMLError as error:
        raise PapersError(where, " ".join(str(error).split())) from None
    except ValidationError as error:
        raise PapersError(where, *(_problem(item, document) for item in error.errors())) from None


def _problem(item: Any, document: dict[str, Any] | None = None) -> str:
    """Where and what; facts, which are validated by their numbers, by their names."""
    loc = list(item["loc"])
    if document is not None and loc[:1] == ["facts"] and len(loc) > 1:
        loc[1] = [*document["facts"]][loc[1]]
    found = "" if item["type"] in ("missing", "value_error") else f", got {item['input']!r:.80}"
    text = item["msg"].removeprefix("Value error, ") + found
    return f"{'.'.join(map(str, loc))}: {text}" if loc else text
