"""The numbers that a paper prints, in a grid file under `printed:`, and ours beside them.

A table has blocks (a figure's panels), a block has columns, a column has rows. Each cell names its run as
SETTING/METHOD, the net in that run's records, and the printed value as it is printed, without its unit. `lost` is a
value that the paper's text has lost; a value that was only drawn is left out. A cell is [net, value] of its column's
run, [RUN, net, value], or a mapping. A column that is a list [RUN, net] is a curve.

Our number of a cell is the mean over its finished seeds; if none is finished, over those that have begun.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Annotated, Any, Literal, Protocol

from pydantic import BeforeValidator, Field

from fedmpi.config.fields import Section, Share
from fedmpi.report import table_text
from fedmpi.report.records import Record, gaps_of, net_scores, rounds_done
from fedmpi.results import measures
from fedmpi.results.evidence import mean_std

HEADS = ("", "column", "row", "paper", "ours", "difference", "seeds", "rounds", "notes")
NUM_LEFT = 3
_SHARES = ("accuracy", "accuracy_drop")


class RunView(Protocol):
    """A run that has begun, from its folder or from an archive."""

    @property
    def records(self) -> Sequence[Record]: ...

    @property
    def rounds(self) -> int: ...  # that the run was asked for

    @property
    def nets(self) -> Sequence[Mapping[str, Any]]: ...  # name, params; empty if the run is not finished

    def is_finished(self) -> bool: ...


RunsOf = Callable[[str, str], Mapping[int, RunView]]
"""Gives the runs of a setting and a method that have begun, by seed."""


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _cell_of_list(value: Any) -> Any:
    """Turns [net], [net, value], [RUN, net] and [RUN, net, value] into a mapping."""
    if not isinstance(value, list):
        return value
    has_run = bool(value) and isinstance(value[0], str) and "/" in value[0]
    names = (("run",) if has_run else ()) + ("net", "value")
    return dict(zip(names, value, strict=False)) if len(value) <= len(names) else value


Text = Annotated[str, BeforeValidator(_as_text)]


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


def _curve_of_list(value: Any) -> Any:
    return {"cells": {"": value}} if isinstance(value, list) else value


Block = dict[str, Annotated[Column, BeforeValidator(_curve_of_list)]]


class Axes(Section):
    """The axes of a figure; y is the quantity."""

    x: Literal[
        "round", "mega_parameters", "uploaded_parameters", "kernel", "relative_cost", "params", "keep_ratio",
        "clients_per_round", "local_epochs", "samples", "method",
    ]  # fmt: skip
    """`mega_parameters` are those moved both ways, in 1024 millions; `params` is the size of the net. A row's label is
    the place of its point on the others, a number or a word.
    """
    x_label: str = ""
    y_label: str = ""


class Table(Section):
    """A table or figure of a paper."""

    title: str
    quantity: measures.Quantity
    unit: str = ""
    of: Literal["best", "last"] = "last"
    """The best round's value, or the last one's."""
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Ours is divided by it: FedHM's "GB" are 4.096e9 bytes."""
    baseline: str = ""
    """What others in the same block are compared with: the cell of this column, or of this row in the same column."""
    targets: dict[str, Share] = {}
    """The accuracy to reach, by block."""
    kind: Literal["table", "curves", "bars", "scatter"] = "table"
    axes: Axes | None = None
    note: str = ""
    blocks: dict[str, Block] | str
    """The blocks, or the name of another table whose blocks these are."""


Printed = dict[str, Table]
"""The tables and figures of a grid file, by name."""


@dataclass(frozen=True)
class Cell:
    """A cell with its place in its table."""

    block: str
    column: str
    row: str
    run: str
    given: Given
    slip: str

    @property
    def paper(self) -> float | None:
        """Returns the printed number, None if it is lost or only drawn."""
        return float(self.given.value) if self.given.value not in ("", "lost") else None


def cells_of(printed: Printed, name: str) -> list[Cell]:
    """Returns the cells of a table in the paper's order."""
    blocks = printed[name].blocks
    if isinstance(blocks, str):
        return cells_of(printed, blocks)
    return [
        Cell(block, label, row, given.run or column.run, given, given.slip or column.slip)
        for block, columns in blocks.items()
        for label, column in columns.items()
        for row, given in column.cells.items()
    ]


def mistakes(printed: Printed, settings: Mapping[str, Any], methods: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
    """Yields (path in the file, problem) of what no single key tells."""
    for name, table in printed.items():
        path = ("printed", name)
        if (table.kind == "table") != (table.axes is None):
            yield path, "`axes` belong to kind curves, bars and scatter, and to all of those"
        if isinstance(table.blocks, str) and isinstance(getattr(printed.get(table.blocks), "blocks", ""), str):
            yield (*path, "blocks"), f"no table {table.blocks!r} that has blocks of its own"
            continue
        cells = cells_of(printed, name)
        for run in dict.fromkeys(cell.run for cell in cells if cell.run):
            setting, _, method = run.partition("/")
            if setting not in settings or method not in methods:
                yield (*path, "blocks"), f"no run {run!r}; expected SETTING/METHOD of this file"
        blocks = {cell.block: cell for cell in reversed(cells)}
        if table.baseline and (
            alone := [block for block, cell in blocks.items() if not baseline_of(table, cells, cell)]
        ):
            yield (*path, "baseline"), f"{table.baseline!r} is neither a column nor a row of block {alone[-1]!r}"
        if table.quantity.endswith("_to_target") and set(table.targets) != set(blocks):
            yield (*path, "targets"), f"`targets` must name the blocks: {', '.join(reversed(blocks))}"


def baseline_of(table: Table, cells: Sequence[Cell], cell: Cell) -> Cell | None:
    """Returns the cell that this one is compared with; if the baseline has several rows, the one of this row."""
    block = [other for other in cells if other.block == cell.block and other.run]
    found = [other for other in block if other.column == table.baseline]
    found = found or [other for other in block if (other.column, other.row) == (cell.column, table.baseline)]
    return next((other for other in found if other.row == cell.row), found[0] if found else None)


def chosen(printed: Printed, only: Sequence[str] = ()) -> dict[str, list[Cell]]:
    """Returns the tables with the cells that have all words of one of the texts, whatever their case.

    The words are whole words of the table's name, the block, the column, the row or the run: `iid` is not in Non-IID.
    """
    tables = {name: [cell for cell in cells_of(printed, name) if _holds(name, cell, only)] for name in printed}
    return {name: cells for name, cells in tables.items() if cells}


def _holds(name: str, cell: Cell, only: Sequence[str]) -> bool:
    text = " ".join((name, cell.block, cell.column, cell.row, cell.run.replace("/", " "), cell.run)).lower()
    patterns = [[rf"(?<![a-z0-9-]){re.escape(word)}(?![a-z0-9])" for word in words.lower().split()] for words in only]
    return not only or any(all(re.search(word, text) for word in words) for words in patterns)


def runs(printed: Printed, only: Sequence[str] = ()) -> list[str]:
    """Returns SETTING/METHOD of the runs that these cells and their baselines need, each once, in the paper's order."""
    needed: dict[str, None] = {}
    for name, cells in chosen(printed, only).items():
        for cell in cells:
            other = baseline_of(printed[name], cells_of(printed, name), cell) if printed[name].baseline else None
            needed |= dict.fromkeys(one.run for one in (other, cell) if one is not None and one.run)
    return list(needed)


@dataclass(frozen=True)
class Result:
    """A cell and our numbers, in the table's unit, by seed."""

    cell: Cell
    numbers: Mapping[int, float]
    runs: Mapping[int, RunView]
    """The runs that `numbers` are of."""
    baselines: Mapping[int, RunView]
    notes: tuple[str, ...] = ()

    @property
    def ours(self) -> float | None:
        """Returns the mean over the seeds."""
        return mean_std(list(self.numbers.values()))[0]

    @property
    def std(self) -> float | None:
        """Returns the sample standard deviation, None for a single seed."""
        return mean_std(list(self.numbers.values()))[1]

    @property
    def rounds(self) -> str:
        """Returns the rounds that are done and asked for, as `80/100`, or `60-80/100` of several seeds."""
        done = sorted({rounds_done(run.records) for run in self.runs.values()})
        asked = [run.rounds for run in self.runs.values()]
        return f"{'-'.join(map(str, dict.fromkeys((done[0], done[-1]))))}/{asked[0]}" if done else "-"

    @property
    def difference(self) -> float | None:
        """Returns ours minus the paper's."""
        return None if self.ours is None or self.cell.paper is None else self.ours - self.cell.paper


def in_unit(table: Table, number: float) -> float:
    """Returns the number as the table has it: shares in its unit, other quantities by its scale."""
    is_percent = table.quantity in _SHARES and table.unit == "%"
    return (100 * number if is_percent else number) / table.scale


def used(cell: Cell, runs_of: RunsOf) -> dict[int, RunView]:
    """Returns the finished runs of a cell, or all that have begun if none is finished, by seed."""
    runs = runs_of(*cell.run.split("/")) if cell.run else {}
    return {seed: run for seed, run in runs.items() if run.is_finished()} or dict(runs)


def results(printed: Printed, name: str, runs_of: RunsOf) -> list[Result]:
    """Returns a result for each cell; a curve's is that of its last (or best) point."""
    return [_result(printed[name], cells_of(printed, name), cell, runs_of) for cell in cells_of(printed, name)]


def _result(table: Table, cells: Sequence[Cell], cell: Cell, runs_of: RunsOf) -> Result:
    runs = used(cell, runs_of)
    other = baseline_of(table, cells, cell)
    baselines = dict(runs_of(*other.run.split("/"))) if other is not None else {}
    is_comparison = table.quantity in measures.COMPARISONS
    comparable = {seed: run for seed, run in runs.items() if seed in baselines and baselines[seed].is_finished()}
    if is_comparison and comparable:
        runs = comparable
    numbers = {}
    for seed, run in runs.items():
        number = measures.value(
            run.records,
            table.quantity,
            cell.given.net,
            of=table.of,
            target=table.targets.get(cell.block),
            baseline=baselines[seed].records if seed in baselines else None,
            baseline_net=other.given.net if other is not None else "",
        )
        if number is not None:
            numbers[seed] = in_unit(table, number)
    result = Result(cell, numbers, runs, baselines)
    return replace(result, notes=tuple(_notes(table, result, is_comparison)))


def _notes(table: Table, result: Result, is_comparison: bool) -> Iterator[str]:
    """Yields what a reader must know of the printed value and of ours."""
    cell = result.cell
    reasons = {"the paper's slip: ": cell.slip, "not reproduced: ": cell.given.not_reproduced}
    yield from (start + reason for start, reason in reasons.items() if reason)
    if cell.given.value == "lost":
        yield "the paper's text has lost this value"
    if not cell.run:
        yield "there is no config for it"
    if not all(run.is_finished() for run in result.runs.values()):
        yield "not finished: as far as it has come"
    for seed, run in result.runs.items():
        if gaps := gaps_of(run.records, rounds_done(run.records)):
            yield f"seed {seed}: no records of some rounds, the first of which is {gaps[0][0]}"
    baselines = [result.baselines[seed] for seed in result.runs if seed in result.baselines]
    if is_comparison and not all(run.is_finished() for run in baselines):
        yield "its baseline is not finished: compared over the rounds that both have done"
    if len(result.numbers) < len(result.runs):
        yield f"{len(result.numbers)} of {len(result.runs)} seeds {_what_others_lack(table, result)}"


def _what_others_lack(table: Table, result: Result) -> str:
    if table.quantity.endswith("_to_target"):
        return f"reach {100 * table.targets[result.cell.block]:g} %"
    if table.quantity in measures.COMPARISONS:
        return "have a baseline"
    if table.quantity != "accuracy":
        return "have a number in their records"
    tested = {net for run in result.runs.values() for record in run.records for net in net_scores(record)}
    return f"have a test of {result.cell.given.net}; tested: {', '.join(sorted(tested)) or 'nothing'}"


def lines(table: Table, results: Sequence[Result]) -> tuple[list[tuple[str, ...]], list[str]]:
    """Returns the lines of the table, each block's name once, and the footnotes."""
    footnotes = list(dict.fromkeys(note for result in results for note in result.notes))
    places = decimals_of([result.cell for result in results])
    rows = []
    for block, of_block in groupby(results, key=lambda result: result.cell.block):
        for number, result in enumerate(of_block):
            marks = "".join(f"[{footnotes.index(note) + 1}]" for note in result.notes)
            rows.append((block if number == 0 else "", *_texts(result, places), marks))
    return rows, [f"[{number}] {note}" for number, note in enumerate(footnotes, 1)]


def decimals_of(cells: Sequence[Cell]) -> int:
    """Returns as many decimals as the paper prints, two if it prints nothing."""
    return max((len(cell.given.value.partition(".")[2]) for cell in cells if cell.paper is not None), default=2)


def _texts(result: Result, places: int) -> tuple[str, ...]:
    cell = result.cell
    paper = cell.given.value or "-"
    paper += "" if cell.given.std is None else f" ({cell.given.std:g})"
    ours = "-" if result.ours is None else f"{result.ours:.{places}f}"
    ours += "" if result.std is None else f" ({result.std:.{places}f})"
    # Adding 0 turns the -0.0 of a rounded difference into 0.0.
    difference = "-" if result.difference is None else f"{round(result.difference, places) + 0.0:+.{places}f}"
    return cell.column, cell.row, paper, ours, difference, ",".join(map(str, result.numbers)) or "-", result.rounds


def head(table: Table, source: str, made_with: str) -> list[str]:
    """Returns the lines above a table: the paper, what a cell is, and what the runs were made with."""
    of = f", {table.of} round" if table.quantity in (*_SHARES, "train_loss") else ""
    unit = f" in {table.unit}" if table.unit else ""
    ours = f"a cell is {table.quantity.replace('_', ' ')}{unit}{of}; ours is the mean over seeds (standard deviation)"
    return [line for line in (source, ours, made_with, table.note) if line]


def comma_separated(table: Table, results: Sequence[Result], made_with: str = "") -> str:
    """Returns the table as CSV, with exact numbers."""
    rows = []
    for result in results:
        cell = result.cell
        row: dict[str, object] = {
            "block": cell.block,
            "column": cell.column,
            "row": cell.row,
            "net": cell.given.net,
            "run": cell.run,
        }
        row |= {key: getattr(table, key) for key in ("quantity", "unit", "of")}
        row |= {"paper": cell.given.value, "paper_std": cell.given.std, "slip": cell.slip}
        row |= {"ours": result.ours, "ours_std": result.std, "difference": result.difference}
        row |= {
            "seeds": " ".join(map(str, result.numbers)),
            "rounds": result.rounds,
            "notes": "; ".join(result.notes),
            "made_with": made_with,
        }
        rows.append(row)
    return table_text.comma_separated(rows)
