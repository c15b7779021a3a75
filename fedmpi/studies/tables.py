"""A paper's table with our numbers beside its own, for `jobs/reproduce.py`: collected from the runs' folders, then as
text, Markdown and CSV.

A cell's number is the mean over its finished seeds; where none is finished, over those begun, and the rounds say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from fedmpi import papers
from fedmpi.report import table_text
from fedmpi.report.records import net_scores, rounds_done
from fedmpi.studies import measures
from fedmpi.studies.reproduction import Named, Request, baseline_of
from fedmpi.studies.runs import History, Run, accuracy_of, mean_std, missing_rounds, other_data

NUM_LEFT = 3
HEADS = ("", "column", "row", "paper", "ours", "difference", "seeds", "rounds", "notes")
NOT_RUN = "not run"
_SHARES = ("accuracy", "accuracy_drop")
_MEASURED = ("inference_time", "inference_energy")
"""What is measured on the nets of a finished run, on this machine."""
_HAVE = {
    **dict.fromkeys(("bytes_to_target", "macs_to_target"), "reach it"),
    **dict.fromkeys(measures.COMPARISONS, "have a baseline"),
}


@dataclass(frozen=True)
class Result:
    """A cell and what our runs say; numbers in the table's unit."""

    cell: papers.Cell
    ours: float | None = None
    std: float | None = None
    """Sample standard deviation over the seeds, None for a single one."""
    seeds: tuple[int, ...] = ()
    """Whose numbers `ours` is the mean of."""
    done: tuple[int, ...] = ()
    """Their rounds."""
    asked: int | None = None
    is_finished: bool = False
    notes: tuple[str, ...] = ()
    """What the number is of, where it is not of all seeds and rounds."""
    why_not: str = ""
    """Why there is no number."""

    @property
    def difference(self) -> float | None:
        return None if self.ours is None or self.cell.paper is None else self.ours - self.cell.paper

    @property
    def rounds(self) -> str:
        ends = "-".join(str(number) for number in sorted({min(self.done), max(self.done)})) if self.done else ""
        return f"{ends}/{self.asked}" if ends else "-"


def in_unit(table: papers.Table, value: float | None) -> float | None:
    """The number as the table has it: shares in its unit, other quantities by its scale."""
    is_percent = table.quantity in _SHARES and table.unit == "%"
    return None if value is None else (100 * value if is_percent else value) / table.scale


class Archive:
    """What the runs of a table have done, each of them read once; of these seeds, or of all that are there."""

    def __init__(self, named: Named, request: Request, seeds: Sequence[int] | None = None) -> None:
        self.named, self.table, self.request = named, named.table, request
        self.is_comparison = self.table.quantity in measures.COMPARISONS
        self._seeds = seeds
        self._read: dict[Run, History | None] = {}

    def histories(self, cell: papers.Cell) -> list[History]:
        """What a cell is told from: its finished seeds, or those that have begun where none is finished."""
        begun = self.begun(cell)
        return [history for history in begun if history.is_finished] or begun

    def used(self, cell: papers.Cell) -> list[History]:
        """What its number is the mean of: of a comparison, those whose baseline is finished, too, where any is."""
        histories = self.histories(cell)
        if not self.is_comparison:
            return histories
        pairs = [(history, self.baseline(cell, history)) for history in histories]
        return [history for history, other in pairs if other and other.is_finished] or histories

    def begun(self, cell: papers.Cell) -> list[History]:
        runs = [] if cell.run is None else self.request.begun(cell.run, self._seeds)
        return [history for run in runs if (history := self._history(run))]

    def number(self, cell: papers.Cell, history: History, quantity: str = "") -> float | None:
        """One seed's number, compared with the same seed of the baseline where the quantity is a comparison."""
        quantity = quantity or self.table.quantity
        if quantity in _MEASURED:
            return _measured(quantity, history, self.request.changed)
        other = baseline_of(self.table, cell)
        return measures.value(
            history,
            quantity,
            cell.net,
            of=self.table.of,
            target=self.table.targets.get(cell.block),
            baseline=self.baseline(cell, history),
            baseline_net=other.net if other else "",
        )

    def baseline(self, cell: papers.Cell, history: History) -> History | None:
        """What a cell's run is compared with, of the same seed; it may be the run itself."""
        other = baseline_of(self.table, cell)
        return self._history(self.request.run_of(other.run, history.run.seed)) if other and other.run else None

    def _history(self, run: Run) -> History | None:
        if run not in self._read:
            self._read[run] = run.history()
        return self._read[run]


def collect(archive: Archive) -> list[Result]:
    """A result for each cell; of a curve, what its last (or best) point is."""
    if archive.table.quantity == "computed":
        return _computed(archive.named)
    return [_result(cell, archive) for cell in archive.table.cells]


def _computed(named: Named) -> list[Result]:
    """What no run is needed for: `fedmpi.verify` computes it from nets that it builds."""
    from fedmpi.verify.__main__ import claims_of
    from fedmpi.verify.claims import UNITS

    known = {} if named.file else {claim.fact.name: claim for claim in claims_of(named.paper.name)}
    results = []
    for cell in named.table.cells:
        claim = known.get("/".join((named.table.name, cell.block, cell.column, cell.row)))
        ours = claim.ours() if claim else None
        value = ours / UNITS[claim.fact.unit] if claim and isinstance(ours, float | int) else None
        results.append(Result(cell, value, why_not="" if value is not None else "not computed"))
    return results


def _measured(quantity: str, history: History, named: Sequence[str]) -> float | None:
    """Dense over pruned, of client 0; None for a run that is not finished."""
    from fedmpi.export.measure import speed_up

    is_known = history.is_finished and quantity == _MEASURED[0]
    return speed_up(history.run.folder.path, named) if is_known else None


def _result(cell: papers.Cell, archive: Archive) -> Result:
    table, used = archive.table, archive.used(cell)
    if not used:
        return Result(cell, why_not="there is no config for it" if cell.run is None else NOT_RUN)
    numbers = {history.run.seed: archive.number(cell, history) for history in used}
    found = {seed: value for seed, value in numbers.items() if value is not None}
    mean, std = mean_std(list(found.values()))
    return Result(
        cell,
        in_unit(table, mean),
        in_unit(table, std),
        tuple(found),
        done=tuple(rounds_done(history.records) for history in used),
        asked=used[0].run.rounds,
        is_finished=used[0].is_finished,
        notes=tuple(_what_it_is_of(cell, used, len(found), archive)),
        why_not="" if found else _why_nothing(cell, used[0], archive),
    )


def _what_it_is_of(cell: papers.Cell, used: Sequence[History], num_found: int, archive: Archive) -> Iterator[str]:
    """Which seeds have no number or miss records, and which comparisons are of the first rounds only."""
    for history in used:
        if missing := missing_rounds(history.records):
            yield f"seed {history.run.seed}: {missing}"
    if len(used) < len(archive.begun(cell)):
        yield f"unfinished seeds{' and those of unfinished baselines' * archive.is_comparison} are left out"
    if 0 < num_found < len(used):
        yield f"{num_found} of {len(used)} seeds {_HAVE.get(archive.table.quantity, 'have it')}"
    if num_found and archive.is_comparison:
        pairs = [(history, archive.baseline(cell, history)) for history in used]
        others = [(history, other) for history, other in pairs if other is not None and other.run != history.run]
        if not all(history.is_finished and other.is_finished for history, other in others):
            is_short = not all(other.is_finished for _, other in others)
            yield f"{'its baseline is not finished: ' * is_short}compared over the rounds that both have done"


def _why_nothing(cell: papers.Cell, history: History, archive: Archive) -> str:
    table = archive.table
    if table.quantity.endswith("_to_target"):
        target = table.targets.get(cell.block)
        return "no target is given" if target is None else f"{100 * target:g} % not reached"
    if archive.is_comparison:
        has_baseline = archive.baseline(cell, history) is not None
        return "nothing to compare in the rounds that both have done" if has_baseline else "its baseline is not run"
    if table.quantity == "accuracy" and all(accuracy_of(record, cell.net) is None for record in history.records):
        tested = {net for record in history.records for net in net_scores(record)}
        return f"no test of {cell.net} yet; tested: {', '.join(sorted(tested)) or 'nothing'}"
    if table.quantity in _MEASURED:
        return "the time is measured when a run is finished, the energy is not"
    return "its records do not say"


@dataclass(frozen=True)
class Text:
    """The table for people: lines of cells, and what stands above and below."""

    title: str
    head: list[str]
    lines: list[tuple[str, ...]]
    footnotes: list[str]

    def markdown(self, pictures: Sequence[str] = ()) -> str:
        above = [f"# {self.title}", "", *(f"- {line}" for line in self.head), ""]
        table = [*table_text.markdown_lines(HEADS, self.lines, NUM_LEFT), ""] if self.lines else []
        shown = [f"![{self.title}]({picture})" for picture in pictures]
        return "\n".join([*above, *shown, *[""] * bool(shown), *table, *(f"- {note}" for note in self.footnotes), ""])


def text_of(named: Named, request: Request, results: Sequence[Result]) -> Text:
    """The cells of these results, each block's name once, slips and lost values in footnotes."""
    places, footnotes = decimals_of(named.table), list(dict.fromkeys(note for one in results for note in _notes(one)))
    lines: list[tuple[str, ...]] = []
    for block, of_block in groupby(results, key=lambda result: result.cell.block):
        for number, result in enumerate(of_block):
            marks = "".join(f"[{footnotes.index(note) + 1}]" for note in _notes(result))
            lines.append((block if number == 0 else "", *_cells(result, places), marks))
    below = [f"[{place}] {note}" for place, note in enumerate(footnotes, 1)]
    return Text(f"{named.name}: {named.table.title}", _head(named, request, results), lines, below)


def _head(named: Named, request: Request, results: Sequence[Result]) -> list[str]:
    table = named.table
    unit = f" in {table.unit}" if table.unit else ""
    of = f", {table.of} round" if table.quantity in (*_SHARES, "train_loss") else ""
    ours = f"{table.quantity.replace('_', ' ')}{unit}{of}; ours is the mean over seeds (standard deviation)"
    budget = [f"runs with {request.budget}", *_lost_steps(request, results)]
    if table.quantity == "computed":
        ours, budget = f"computed{unit} from nets that are built; no run is needed (python -m fedmpi.verify)", []
    if table.quantity in _MEASURED:
        ours += "; ours is measured on this machine, on the nets of client 0"
    changed = [f"set on all: {' '.join(request.changed)}"] if request.changed else []
    note = [table.note] if table.note else []
    runs = [request.run_of(result.cell.run, seed) for result in results for seed in result.seeds if result.cell.run]
    return [named.paper.source, f"a cell is {ours}", *budget, *changed, *other_data(runs), *note]


def _lost_steps(request: Request, results: Sequence[Result]) -> Iterator[str]:
    """A line for each number of steps of the learning rate that the budget's rounds are too few for."""
    by_loss: dict[tuple[int, int], list[str]] = {}
    for run in dict.fromkeys(result.cell.run for result in results if result.done and result.cell.run):
        by_loss.setdefault(request.lost_steps(run), []).append(run.config.rpartition("/")[2])
    for (lost, steps), configs in by_loss.items():
        if lost:
            of = f"{lost} of {steps} steps of the learning rate"
            yield f"too few rounds for {of} in {', '.join(dict.fromkeys(configs))}"


def decimals_of(table: papers.Table) -> int:
    """As many decimals as the paper prints, two where it prints nothing."""
    return max((len(cell.printed.partition(".")[2]) for cell in table.cells if cell.printed), default=2)


def _cells(result: Result, places: int) -> tuple[str, ...]:
    cell = result.cell
    paper = "lost" if cell.lost else cell.printed or "-"
    paper += "" if cell.std is None else f" ({cell.std:g})"
    ours = "-" if result.ours is None else f"{result.ours:.{places}f}"
    ours += "" if result.std is None else f" ({result.std:.{places}f})"
    # Adding 0 turns the -0.0 of a rounded difference into 0.0.
    difference = "-" if result.difference is None else f"{round(result.difference, places) + 0.0:+.{places}f}"
    return cell.column, cell.row, paper, ours, difference, ",".join(map(str, result.seeds)) or "-", result.rounds


def _notes(result: Result) -> list[str]:
    cell = result.cell
    notes = [f"the paper's slip: {cell.slip}"] if cell.slip else []
    notes += [f"not reproduced: {cell.not_reproduced}"] if cell.not_reproduced else []
    notes += ["the paper's text has lost this value"] if cell.lost else []
    notes += ["not finished: as far as it has come"] if result.done and not result.is_finished else []
    return [*notes, *result.notes] + ([result.why_not] if result.why_not and result.why_not != NOT_RUN else [])


def comma_separated(table: papers.Table, results: Sequence[Result], made_with: str = "") -> str:
    """Exact numbers, every cell a line; `made_with` are the runs' budget and settings."""
    return table_text.comma_separated([_exact(table, result) | {"made_with": made_with} for result in results])


def _exact(table: papers.Table, result: Result) -> dict[str, object]:
    cell, run = result.cell, result.cell.run
    return {
        **{key: getattr(cell, key) for key in ("block", "column", "row", "net")},
        **{key: getattr(table, key) for key in ("quantity", "unit", "of")},
        "paper": cell.printed,
        "paper_std": cell.std,
        "lost": cell.lost,
        "slip": cell.slip,
        "ours": result.ours,
        "ours_std": result.std,
        "difference": result.difference,
        "seeds": " ".join(map(str, result.seeds)),
        "rounds_done": " ".join(map(str, result.done)),
        "rounds_asked": result.asked,
        "finished": result.is_finished,
        "config": run.config if run else "",
        "overrides": " ".join(run.overrides) if run else "",
        "why_not": result.why_not,
        "notes": "; ".join(result.notes),
    }
