"""Writes the report of a grid: Markdown with the answers first, then what they rest on; CSV; LaTeX; figures.

`report.md.jinja` has the sections of the Markdown and their texts. This module makes the sentences and the tables.
"""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import pandas as pd

from fedmpi.config import yaml_text
from fedmpi.errors import counted
from fedmpi.report import table_text
from fedmpi.report.records import accuracies, net_scores
from fedmpi.results import frame
from fedmpi.results.answers import Answer, Part, Results
from fedmpi.results.archive import RunRecord
from fedmpi.results.evidence import ALPHA, mean_std, smallest_p
from fedmpi.results.figure import Line, Panel
from fedmpi.results.frame import values
from fedmpi.results.grid_file import Grid, Measure, finals, methods_by, not_alike
from fedmpi.results.printed import Cell, Table, baseline_of, cells_of
from fedmpi.store.manifest import DIRTY
from fedmpi.store.units import duration, joules, percent, seconds, si

_PRINTED = ("", "column", "row", "paper", "ours", "difference", "seeds", "rounds", "notes")
_MEASURED = {"accuracy_drop": "accuracy", "relative_cost": "bytes"}
"""The quantity of both runs that a comparison is of."""
_DIFFERENCE = ("first", "second", "measure", "allowed", "difference", "sd", "interval", "p", "seeds", "by seed")


class TextTable(NamedTuple):
    """A table of a report, whose first `num_left` columns are text."""

    title: str
    heads: Sequence[str]
    lines: Sequence[Sequence[str]]
    num_left: int
    above: Sequence[str] = ()

    def markdown(self) -> str:
        table = table_text.markdown_lines(self.heads, self.lines, self.num_left)
        return "\n\n".join("\n".join(lines) for lines in (self.above, table) if lines)


def texts(results: Results) -> dict[str, str]:
    """Returns the content of each file of the report but the figures. The CSV has every run's numbers, exact."""
    values_csv = str(results.values.to_csv(index=False))
    return {"report.md": markdown(results), "table.tex": latex(results), "values.csv": values_csv}


def tables(results: Results) -> dict[str, TextTable]:
    """Returns the tables of the paper of which a run is finished, or one of each setting, by name."""
    grid = results.grid
    if not grid.printed:
        return {setting: _table(results, setting) for setting in grid.settings}
    finished = {run.run.address for run in results.runs}
    shown = {}
    for name in grid.printed:
        if any(cell.run in finished for cell in cells_of(grid.printed, name)):
            shown[name] = paper_table(grid, name, results.runs)
    return shown


def markdown(results: Results) -> str:
    """Returns the whole report."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(trim_blocks=True, lstrip_blocks=True, loader=PackageLoader("fedmpi", "results"))
    environment.globals.update(counted=counted, smallest_p=smallest_p, ALPHA=ALPHA)
    grid = results.grid
    runs = results.runs
    num_final = sum(run.run.phase == "final" for run in runs)
    text = environment.get_template("report.md.jinja").render(
        grid=grid,
        runs=runs,
        num_final=num_final,
        missing=len(finals(grid, {})) - num_final,
        mixed=[*mixed_lines(results)],
        answers=[sentence(grid, answer) for answer in results.answers],
        code=sorted({str(run.made_with.get("git")) for run in runs}),
        spent=duration(sum(run.seconds.get("wall", 0.0) * run.rounds for run in runs)),
        versions=dict.fromkeys(map(_versions, runs)),
        changed=results.changed,
        num_dirty=sum(str(run.made_with.get("git")).endswith(DIRTY) for run in runs),
        at_edges=_choices_at_edges(results),
        tables=tables(results),
        nets=partial(_nets, results),
        differences=partial(_differences, results),
        not_alike=lambda setting: not_alike(results.configs.get(setting, {})),
        pictures=figures_of(results),
        choices=_choices(results) if results.choices else None,
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def sentence(grid: Grid, answer: Answer) -> str:
    """Returns an answer in words and numbers."""
    where = f" In {answer.setting}:" if answer.setting and len(grid.settings) > 1 else ""
    text = f"{answer.question.ask}{where} **{answer.verdict}**"
    if answer.parts:
        text += f": {'; '.join(map(_part_text, answer.parts))}"
    return f"{text} ({answer.why})." if answer.why else f"{text}."


def _part_text(part: Part) -> str:
    low, high, confidence = part.interval
    ends = f"{_signed(part.measure, low, unit=False)} to {_signed(part.measure, high, unit=False)}"
    notes = [f"{100 * confidence:.1f} % interval {ends}"]
    if part.condition.margin:
        notes.append(f"allowed {_signed(part.measure, -part.condition.margin)}")
    if part.condition.by == "mean":
        notes.append("judged by its mean: an estimate, not a test")
    if part.num_unreached:
        notes.append(f"{counted(part.num_unreached, 'run')} never reached the target")
    return f"{part.condition.measure} {_signed(part.measure, part.mean)} ({', '.join(notes)})"


def mixed_lines(results: Results) -> Iterator[str]:
    """Yields a line for each seed of a setting whose runs were not all made by the same code, versions and
    platform, of the same examples.
    """
    for setting, seed in product(results.grid.settings, results.grid.seeds):
        runs = [run for run in results.finals(setting) if run.run.seed == seed]
        differ = sorted({name for run in runs for name, _ in run.computed_by.items() ^ runs[0].computed_by.items()})
        made_by = {}
        for run in runs:
            made_by[run.run.method] = ", ".join(f"{name} {run.computed_by.get(name)}" for name in differ)
        if differ:
            groups = [f"{', '.join(methods)} by {text}" for text, methods in methods_by(made_by).items()]
            yield f"**The runs of seed {seed} in {setting} were not made alike:** {'; '.join(groups)}."


def _versions(run: RunRecord) -> str:
    numbers = [f"{name} {number}" for name, number in (run.made_with.get("versions") or {}).items()]
    return f"{', '.join(numbers)}; {run.made_with.get('platform')}"


def _choices_at_edges(results: Results) -> Iterator[str]:
    """Yields a line for each chosen number at an end of at least three that were tried: a better one may lie beyond."""
    settings: dict[str, list[str]] = {}
    for (setting, method), choice in results.choices.items():
        trials = results.grid.methods[method].trials
        for key, chosen in trials[choice.trial].items():
            tried = sorted({trial[key] for trial in trials if type(trial.get(key)) in (int, float)})
            if len(tried) > 2 and chosen in (tried[0], tried[-1]):
                edge = "lowest" if chosen == tried[0] else "highest"
                line = f"{method} took the {edge} {key} that was tried, {yaml_text.flow(chosen)}"
                settings.setdefault(line, []).append(setting)
    yield from (f"{', '.join(names)}, {line}" for line, names in settings.items())


def _table(results: Results, setting: str) -> TextTable:
    """Returns each method's means. A measure without any number has no column, unless no run reached its target."""
    ends = results.values[(results.values["phase"] == "final") & (results.values["setting"] == setting)]
    has_clock = any("simulated_s" in run.records[-1] for run in results.finals(setting))
    measures = {}
    for name, measure in results.grid.measures.items():
        can_be_reached = has_clock or not measure.quantity.startswith("simulated")
        if (measure.is_to_target and can_be_reached) or ends[name].notna().any():
            measures[name] = measure
    lines = []
    for method in results.grid.methods:
        own = ends[ends["method"] == method]
        choice = results.choices.get((setting, method))
        chosen = _trial(results, method, choice.trial) if choice else "-"
        cells = [_mean(measure, own[name]) for name, measure in measures.items()]
        lines.append((method, chosen, str(len(own)), *cells))
    return TextTable(f"Setting {setting}", ["method", "chosen", "seeds", *measures], lines, 2)


def _nets(results: Results, setting: str) -> TextTable:
    lines = []
    for method in results.grid.methods:
        own = results.finals(setting, method)
        sizes = {net["name"]: net for net in own[0].nets} if own else {}
        last = own[0].records[-1] if own else {}
        for name in dict.fromkeys([*sizes, *accuracies(last)]):
            net = sizes.get(name, {})
            measures = {of: Measure(quantity="accuracy", net=name, of=of) for of in ("last", "best")}
            ends = values(own, measures)
            shares = [_mean(measure, ends[of]) for of, measure in measures.items()]
            lines.append((method, name, si(net.get("params")), si(net.get("macs")), *shares))
    return TextTable("", ["method", "net", "params", "MACs", "accuracy", "best"], lines, 2)


def _choices(results: Results) -> TextTable:
    tuning = results.grid.tuning
    assert tuning is not None
    lines = []
    for (setting, method), choice in results.choices.items():
        for number, score in enumerate(choice.scores):
            shown = "-" if pd.isna(score) else _shown(results.grid.measures[tuning.measure], score)
            mark = "**" if number == choice.trial else ""
            lines.append((setting, method, f"{mark}{_trial(results, method, number)}{mark}", f"{mark}{shown}{mark}"))
    return TextTable("", ("setting", "method", "trial", "score"), lines, 3)


def _differences(results: Results, setting: str) -> TextTable:
    lines = []
    for answer in results.answers:
        for part in answer.parts if answer.setting == setting else ():
            low, high, confidence = part.interval
            differences = part.differences.tolist()
            deviation = mean_std(differences)[1]
            cells = (
                answer.question.first,
                answer.question.second,
                part.condition.measure,
                _signed(part.measure, -part.condition.margin or 0.0),
                _signed(part.measure, part.mean),
                "-" if deviation is None else _signed(part.measure, deviation, unit=False).lstrip("+"),
                f"{_signed(part.measure, low, unit=False)} to {_signed(part.measure, high)} ({100 * confidence:.1f} %)",
                f"{part.p:.3g}" if part.condition.by == "test" else "-",
                ", ".join(map(str, part.differences.index)),
                ", ".join(_signed(part.measure, each, unit=False) for each in differences),
            )
            lines.append(cells)
    return TextTable("", _DIFFERENCE, lines, 3)


def _trial(results: Results, method: str, number: int) -> str:
    values = results.grid.methods[method].trials[number]
    return ", ".join(f"{key} {yaml_text.flow(value)}" for key, value in values.items()) or "-"


def _mean(measure: Measure, numbers: pd.Series) -> str:
    known = numbers.dropna().tolist()
    mean, std = mean_std(known)
    of = f" ({len(known)} of {len(numbers)})" if len(known) < len(numbers) else ""
    if mean is None:
        return "-"
    if std is None:
        return _shown(measure, mean) + of
    return f"{_shown(measure, mean, unit=False)} ± {_shown(measure, std)}{of}"


def _shown(measure: Measure, number: float, *, unit: bool = True) -> str:
    if measure.quantity.startswith("simulated_j"):
        return joules(number)
    in_seconds = measure.quantity.startswith(("seconds", "simulated_s"))
    if not measure.is_share and not in_seconds:
        return si(number)
    text = percent(number) if measure.is_share else seconds(number)
    return text if unit else text.partition(" ")[0]


def _signed(measure: Measure, number: float, *, unit: bool = True) -> str:
    if measure.is_share:
        return f"{100 * number:+.2f}{' points' if unit else ''}"
    return ("-" if number < 0 else "+") + _shown(measure, abs(number), unit=unit)


def latex(results: Results) -> str:
    """Returns the tables for a paper (they need the package booktabs)."""
    parts = []
    for name, table in tables(results).items():
        columns = "l" * table.num_left + "r" * (len(table.heads) - table.num_left)
        texts = pd.DataFrame(table.lines, columns=table.heads)
        parts.append(f"% {name}\n{texts.to_latex(index=False, escape=True, column_format=columns)}")
    return "\n".join(parts).replace("±", r"$\pm$")


def figures_of(results: Results) -> dict[str, list[Panel]]:
    """Returns the panels of each figure, by the name of its file."""
    grid = results.grid
    figures = {}
    for name in grid.printed:
        figures[f"{name}.svg"] = panels_of_paper(grid, name, results.runs)
    for setting in () if grid.printed else grid.settings:
        figures[f"{setting}-curves.svg"] = _curves(results, setting)
        figures[f"{setting}-energy.svg"] = [*_energies(results.finals(setting))]
    return {name: panels for name, panels in figures.items() if panels}


def _curves(results: Results, setting: str) -> list[Panel]:
    runs = results.finals(setting)
    if not runs:
        return []
    axes = [("clients", "rounds"), ("clients", "bytes")]
    if all(any(map(net_scores, run.records)) for run in runs):
        axes = [("largest", "rounds"), ("smallest", "rounds"), ("largest", "bytes")]
    if all("simulated_s" in run.records[-1] for run in runs):
        axes.append((axes[0][0], "simulated_s"))
    panels = []
    for net, x in axes:
        lines = {}
        for place, method in enumerate(results.grid.methods):
            if own := results.finals(setting, method):
                lines[place] = frame.curve(method, [run.records for run in own], net, x=x)
        title = "clients' own nets" if net == "clients" else f"{net} net"
        panels.append(Panel(lines, x, "accuracy", title, "test accuracy"))
    return panels


def _energies(runs: Sequence[RunRecord]) -> Iterator[Panel]:
    for run in runs:
        lines = [line for line in frame.tier_curves(run.records, "spectrum", "beyond") if len(line.x) > 1]
        if len(lines) > 1:
            title = f"{run.run.method}, seed {run.run.seed}"
            yield Panel(dict(enumerate(lines)), "rounds", "lacking", title, "energy beyond a tier's rank")


# Our numbers beside those of a paper.


def paper_table(grid: Grid, name: str, runs: Sequence[RunRecord]) -> TextTable:
    """Returns a paper's table with our numbers. A curve's number is that of its last (or best) point."""
    shown = grid.printed[name]
    cells = cells_of(grid.printed, name)
    places = max((len(cell.value.partition(".")[2]) for cell in cells if cell.paper is not None), default=2)
    lines = [_texts(shown, cell, runs, places) for cell in cells]
    of = f", {shown.of} round" if shown.quantity in ("accuracy", "accuracy_drop", "train_loss") else ""
    unit = f" in {shown.unit}" if shown.unit else ""
    ours = f"a cell is {shown.quantity.replace('_', ' ')}{unit}{of}; ours is the mean over seeds (standard deviation)"
    above = [f"- {line}" for line in (grid.source, ours, shown.note) if line]
    return TextTable(f"{name}: {shown.title}", _PRINTED, lines, 3, above)


def _numbers(table: Table, cell: Cell, runs: Sequence[RunRecord]) -> pd.Series:
    """Returns the cell's number of the runs that have it, by seed, in the table's unit."""
    numbers = _measured(table, cell.block, cell.run, cell.net, runs)
    if table.quantity in _MEASURED:
        others = _measured(table, cell.block, baseline_of(table, cell), table.baseline_net, runs)
        numbers = (numbers / others if table.quantity == "relative_cost" else others - numbers).dropna()
    is_percent = table.quantity in ("accuracy", "accuracy_drop") and table.unit == "%"
    return numbers * (100 if is_percent else 1) / table.scale


def _measured(table: Table, block: str, address: str, net: str, runs: Sequence[RunRecord]) -> pd.Series:
    quantity = _MEASURED.get(table.quantity, table.quantity)
    target = table.targets.get(block)
    measure = Measure.model_validate({"quantity": quantity, "net": net, "of": table.of, "target": target})
    numbers = {run.run.seed: frame.value(run, measure) for run in runs if run.run.address == address}
    return pd.Series(numbers, dtype=float).dropna()


def _texts(table: Table, cell: Cell, runs: Sequence[RunRecord], places: int) -> Sequence[str]:
    own = [run for run in runs if run.run.address == cell.run]
    numbers = _numbers(table, cell, runs)
    printed = cell.value or "-"
    printed += "" if cell.std is None else f" ({cell.std:g})"
    mean, std = mean_std(numbers.tolist())
    ours = "-" if mean is None else f"{mean:.{places}f}"
    ours += "" if std is None else f" ({std:.{places}f})"
    difference = "-"
    if mean is not None and cell.paper is not None:
        # Adding 0 turns the -0.0 of a rounded difference into 0.0.
        difference = f"{round(mean - cell.paper, places) + 0.0:+.{places}f}"
    seeds = ",".join(map(str, numbers.index)) or "-"
    rounds = ",".join(map(str, sorted({run.rounds for run in own}))) or "-"
    notes = {
        f"the paper's slip: {cell.slip}": cell.slip,
        f"not reproduced: {cell.not_reproduced}": cell.not_reproduced,
        "the paper's text has lost this value": cell.value == "lost",
        "there is no config for it": not cell.run,
        f"{len(numbers)} of {len(own)} seeds have this number": len(numbers) < len(own),
    }
    note = "; ".join(note for note, is_so in notes.items() if is_so)
    return cell.block, cell.column, cell.row, printed, ours, difference, seeds, rounds, note


def panels_of_paper(grid: Grid, name: str, runs: Sequence[RunRecord]) -> list[Panel]:
    """Returns the panels of a paper's figure that have a curve; [] for a table. A column has one colour in all."""
    shown = grid.printed[name]
    cells = cells_of(grid.printed, name) if shown.x else []
    columns = list(dict.fromkeys(cell.column for cell in cells))
    panels: dict[str, dict[int, Line]] = {}
    for cell in cells:
        records = [run.records for run in runs if run.run.address == cell.run]
        line = frame.curve(cell.column, records, cell.net, shown.quantity, shown.x)
        if line.x:
            panels.setdefault(cell.block, {})[columns.index(cell.column)] = line
    label = shown.quantity.replace("_", " ")
    return [Panel(lines, shown.x, shown.quantity, block, label) for block, lines in panels.items()]
