"""The tables and figures that a paper prints, in a grid file under `printed:`.

A table has blocks (a figure's panels), a block has columns, a column has rows. Each cell names its run as
SETTING/METHOD, the net in that run's records, and the printed value as it is printed, without its unit. `lost` is a
value that the paper's text has lost; a value that was only drawn is left out. A cell is [net, value] of its column's
run, [RUN, net, value], or a mapping. A column that is a list [RUN, net] is a curve of a figure; points of a figure
stand in a table.
"""

import re
from collections.abc import Collection, Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from fedmpi.config.fields import Section, Share

Quantity = Literal[
    "accuracy",  # on the test set, a share; of the net, see `frame.nets_of`
    "f1_macro",  # as `evaluation.metrics`
    "auc",
    "top5",
    "r2",
    "mse",
    "mae",
    "train_loss",  # mean over the cohort
    "bytes",  # moved in the whole run, both ways
    "macs",  # of the whole run's training
    "bytes_to_target",  # moved until the target is reached
    "macs_to_target",  # forward MACs x examples until the target is reached
    "rounds_to_target",
    "simulated_s",  # of the whole run on the clients' devices (`devices`)
    "simulated_j",
    "simulated_s_to_target",
    "simulated_j_to_target",
    "seconds",  # of one round, or of the stage that `net` names
    "time_share",  # that stage's share of a round
    "kernels_needed",  # PriSM: the effective number of kernels of the layer `net`
    "clients_per_kernel",  # PriSM: how many clients of a cohort train each kernel of the layer `net`
    "inference_time",  # dense over pruned: no record has it, `fedmpi export --cut` measures it
    "inference_energy",
]
Comparison = Literal[
    "accuracy_drop",  # the baseline's accuracy minus this run's
    "relative_cost",  # bytes moved, both ways, over those of the baseline
]
"""Quantities that need a baseline: a run of the same seed."""


def _cell_of_list(value: Any) -> Any:
    """Turns [net], [net, value], [RUN, net] and [RUN, net, value] into a mapping."""
    if not isinstance(value, list):
        return value
    has_run = bool(value) and isinstance(value[0], str) and "/" in value[0]
    names = ["run", "net", "value"] if has_run else ["net", "value"]
    return dict(zip(names, value, strict=False)) if len(value) <= len(names) else value


def _curve_of_list(value: Any) -> Any:
    return {"cells": {"": value}} if isinstance(value, list) else value


Text = Annotated[str, Field(strict=False, coerce_numbers_to_str=True)]


class Given(Section):
    """One number of a table, or a curve."""

    run: str = ""
    """SETTING/METHOD; empty takes the column's."""
    net: Text = ""
    """The tested net, the layer or the stage of a round that the number is of; `clients` is the mean of their own."""
    value: Annotated[Text, Field(pattern=r"^([-+]?[0-9]*\.?[0-9]+|lost|)$")] = ""
    """As printed; quoted where YAML would lose a digit."""
    std: Annotated[float, Field(ge=0, strict=False)] | None = None
    """The standard deviation that the paper prints."""
    slip: str = ""
    """Why the printed value cannot be right, or what it really is."""
    not_reproduced: str = ""
    """In what the value differs from ours where no run is needed to tell."""


class Column(Section):
    """A column of a block; `run` and `slip` are of all its cells that have none of their own."""

    run: str = ""
    slip: str = ""
    cells: dict[str, Annotated[Given, BeforeValidator(_cell_of_list)]] = Field(min_length=1)


class Table(Section):
    """A table or figure of a paper."""

    title: str
    quantity: Quantity | Comparison
    unit: str = ""
    of: Literal["best", "last"] = "last"
    """The best round's value, or the last one's."""
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Ours is divided by it: FedHM's "GB" are 4.096e9 bytes."""
    baseline: str = ""
    """The method whose run in the same setting each run is compared with."""
    baseline_net: Text = "largest"
    """The net of that run."""
    targets: dict[str, Share] = {}
    """The accuracy to reach, by block."""
    x: Literal["", "rounds", "bytes", "uploaded_parameters", "kernel"] = ""
    """The x axis of a figure; a table has none."""
    note: str = ""
    blocks: dict[str, dict[str, Annotated[Column, BeforeValidator(_curve_of_list)]]] | str
    """The blocks, or the name of another table whose blocks these are."""


Printed = dict[str, Table]
"""The tables and figures of a grid file, by name."""


class Cell(Given):
    """A cell with its place in its table, and with the run and the slip of its column."""

    block: str
    column: str
    row: str

    @property
    def paper(self) -> float | None:
        """Returns the printed number, None if it is lost or only drawn."""
        return float(self.value) if self.value not in ("", "lost") else None


def cells_of(printed: Printed, name: str) -> list[Cell]:
    """Returns the cells of a table in the paper's order."""
    blocks = printed[name].blocks
    if isinstance(blocks, str):
        return cells_of(printed, blocks)
    found = []
    for block, columns in blocks.items():
        for label, column in columns.items():
            shared = {"block": block, "column": label, "run": column.run, "slip": column.slip}
            for row, given in column.cells.items():
                own = {key: value for key, value in given if value != ""}
                found.append(Cell.model_validate({**shared, **own, "row": row}))
    return found


def names(
    printed: Printed, settings: Collection[str], methods: Collection[str]
) -> Iterator[tuple[tuple[str, ...], str, Collection[str]]]:
    """Yields each name that stands for another entry of the file: its path, itself, and the known ones."""
    own_blocks = [name for name, table in printed.items() if not isinstance(table.blocks, str)]
    for name, table in printed.items():
        path = ("printed", name)
        if table.baseline:
            yield (*path, "baseline"), table.baseline, methods
        if isinstance(table.blocks, str):
            yield (*path, "blocks"), table.blocks, own_blocks
        for cell in cells_of(printed, name) if name in own_blocks else ():
            if cell.run:
                setting, _, method = cell.run.partition("/")
                yield (*path, "blocks"), setting, settings
                yield (*path, "blocks"), method, methods
            if table.quantity.endswith("_to_target"):
                yield (*path, "targets"), cell.block, table.targets


def has_words(text: str, words: str) -> bool:
    """Says whether all these words stand whole in a text, whatever their case: `iid` is not in Non-IID."""
    patterns = [rf"(?<![a-z0-9-]){re.escape(word)}(?![a-z0-9])" for word in words.lower().split()]
    return all(re.search(pattern, text.lower()) for pattern in patterns)


def runs(printed: Printed, only: str = "") -> list[str]:
    """Returns SETTING/METHOD of the runs that the cells with all words of `only` and their baselines need, each once,
    in the paper's order. The words are those of the table's name, the block, the column, the row or the run.
    """
    needed = []
    for name, table in printed.items():
        for cell in cells_of(printed, name):
            text = " ".join((name, cell.block, cell.column, cell.row, cell.run.replace("/", " "), cell.run))
            if cell.run and has_words(text, only):
                if table.baseline:
                    needed.append(baseline_of(table, cell))
                needed.append(cell.run)
    return list(dict.fromkeys(needed))


def baseline_of(table: Table, cell: Cell) -> str:
    """Returns SETTING/METHOD of the run that the cell's run is compared with."""
    return f"{cell.run.partition('/')[0]}/{table.baseline}"
