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
            FedHM: {run: fedhm/table3_cifar10_iid_fedhm, cells: {11.17M: [1, 93.46], 4.16M: [0.5, 93.37]}}

A cell is [net, value], [net, value, override ...] or a mapping with the keys of `Cell`; `net` is the
name of the tested net in a run's records (`clients`: the mean over the clients' own nets). A value
that the paper's text has lost is `lost`, one that was only drawn is left out. A column without
cells is a curve.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedmpi.errors import UserError

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
    "round", "bytes", "uploaded_parameters", "mega_parameters", "relative_cost", "keep_ratio", "kernel",
    "clients_per_round", "local_epochs", "samples", "params", "stage", "method",
]  # fmt: skip
"""What a figure's x axis has. `mega_parameters`: those moved both ways, in 1024 millions (FedHM's "GB")."""
Verdict = Literal["equal", "slip", "not_reproduced"]


class PapersError(UserError):
    """A data file of the papers that is not as it should be."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Run(_Part):
    """A run: a config (its path under `configs/`, without .yaml) and overrides as on the command line."""

    config: str
    overrides: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """A folder's name, different for different runs."""
        changed = (override.replace("/", "_") for override in self.overrides)
        return "-".join([self.config.replace("/", "-"), *changed])


def _number(value: str) -> str:
    """Text that is a number, or empty."""
    if value:
        float(value)
    return value


Number = Annotated[str, AfterValidator(_number)]


class Cell(_Part):
    """One number of a table, one point or bar of a figure; or (`row` empty) a curve."""

    block: str
    column: str
    row: str = ""
    run: Run | None = None
    net: str = ""
    printed: Number = ""
    """As printed, without unit; empty where the paper has only drawn it, or its text is lost."""
    std: float | None = None
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
    scale: float = 1.0
    """Ours is divided by it: FedHM's "GB" are 4.096e9 bytes."""
    rows: Literal["", "params"] = ""
    baseline: str = ""
    """What others in the same block are compared with: the cell of this column, or of this row in the same column."""
    targets: dict[str, float] = {}
    """Accuracy to reach, by block."""
    kind: Literal["table", "curves", "bars", "scatter"] = "table"
    axes: Axes | None = None
    note: str = ""
    cells: tuple[Cell, ...]

    @property
    def curves(self) -> tuple[Cell, ...]:
        return tuple(cell for cell in self.cells if not cell.row)

    @property
    def runs(self) -> tuple[Run, ...]:
        """Those that it needs, each once, in the paper's order."""
        return tuple(dict.fromkeys(cell.run for cell in self.cells if cell.run is not None))

    @model_validator(mode="before")
    @classmethod
    def _flatten(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {**{key: value for key, value in values.items() if key != "blocks"},
                "cells": list(_cells(values.get("blocks", {})))}  # fmt: skip

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


def _cells(blocks: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each cell with what its column says of all of them; one with a run of its own leaves the column's overrides."""
    for block, columns in blocks.items():
        for column, content in columns.items():
            own = dict(content)
            rows = own.pop("cells", {"": {}})
            for row, given in rows.items():
                cell = _cell(given)
                overrides = [*(() if "run" in cell else own.get("set", ())), *cell.pop("set", ())]
                found = {"block": block, "column": column, "row": row, **own, **cell}
                found.pop("set", None)
                if found.get("run") is not None:
                    found["run"] = {"config": found["run"], "overrides": overrides}
                yield found


def _cell(cell: Any) -> dict[str, Any]:
    if isinstance(cell, list) and len(cell) >= 2:
        net, value, *overrides = cell
        cell = {"net": net, "paper": value, "set": overrides}
    if not isinstance(cell, dict):
        raise ValueError(f"a cell is [net, value, override ...] or a mapping, got {cell}")
    cell = dict(cell)
    value = cell.pop("paper", "")
    return {**cell, "lost": True} if value == "lost" else {**cell, "printed": value}


class Fact(_Part):
    """A printed number or formula that follows from the nets alone."""

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
        return self


class Paper(_Part):
    """A paper: where it is to be found, its tables and figures by name (`table3`, `figure4a`), and its facts."""

    name: str
    source: str
    tables: dict[str, Table]
    facts: tuple[Fact, ...] = ()
    size_slips: dict[str, str] = Field(default={})
    """`<data> <column> <row>` of a row label that is not the rounded size of its net, and why."""

    @model_validator(mode="before")
    @classmethod
    def _name_tables(cls, values: dict[str, Any]) -> dict[str, Any]:
        tables = {name: {"name": name, **table} for name, table in (values.get("tables") or {}).items()}
        facts = [{"id": key, **fact} for key, fact in (values.get("facts") or {}).items()]
        return {**values, "tables": tables, "facts": facts}

    def cell(self, path: str) -> Cell:
        """The cell `table/block/column/row`. Raises KeyError."""
        table, *place = path.split("/")
        found = [cell for cell in self.tables[table].cells if [cell.block, cell.column, cell.row] == place]
        if not found:
            raise KeyError(path)
        return found[0]


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
        return Paper.model_validate({"name": name, **yaml.load(text, _TextLoader)})
    except yaml.YAMLError as error:
        raise PapersError(where, " ".join(str(error).split())) from None
    except ValidationError as error:
        raise PapersError(where, *(_problem(item) for item in error.errors())) from None
    except (TypeError, AttributeError, ValueError) as error:
        raise PapersError(where, f"not in the form that fedmpi.papers describes: {error}") from None


def _problem(item: Any) -> str:
    return f"{'.'.join(map(str, item['loc'])) or 'file'}: {item['msg']}, got {item['input']!r:.80}"


class _TextLoader(yaml.BaseLoader):
    """All scalars as text; no key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.YAMLError(f"line {node.start_mark.line + 1}: {', '.join(map(str, twice))} given twice")
        return super().construct_mapping(node, deep)
