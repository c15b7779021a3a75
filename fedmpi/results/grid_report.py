"""Writes the report of a grid: Markdown with the answers first, then what they rest on; CSV; LaTeX."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedmpi.config import yaml_text
from fedmpi.config.settings import settings as settings_of
from fedmpi.errors import UserError, counted
from fedmpi.report import table_text
from fedmpi.report.records import CLIENTS, net_scores
from fedmpi.results import grid_figures, printed_report
from fedmpi.results.answers import Answer, Part, Results
from fedmpi.results.archive import RunRecord
from fedmpi.results.evidence import ALPHA, mean_std, smallest_p
from fedmpi.results.frame import value
from fedmpi.results.grid_file import Grid, Measure
from fedmpi.results.grid_runs import finals
from fedmpi.results.printed import cells_of
from fedmpi.results.printed_report import TextTable
from fedmpi.running.forecast import forecast
from fedmpi.store.manifest import DIRTY
from fedmpi.store.units import duration, percent, seconds, si

_SHARED = {"data": "examples", "partition": "partition", "cohorts": "cohorts", "initial": "initial values of the model"}
"""What all runs of a seed and setting have alike: the name in the archive, and in words."""
_NO_PAIR = """\
Two runs that were not made alike are no pair: their difference is in no mean difference, interval or test below. Each \
is in the mean of its own method."""
_OF_DIFFERENCES = """\
A row holds where its difference is above `allowed`. p is that of the row alone, before Holm's correction; a row \
without one is judged by its mean, which is an estimate and no test."""


def texts(results: Results) -> dict[str, str]:
    """Returns the content of each file of the report but the figures."""
    files = {"report.md": markdown(results), "table.tex": latex(results), "values.csv": values_csv(results)}
    if results.grid.content.printed:
        files["printed.csv"] = printed_report.comma_separated(results.grid.content, results.runs)
    return files


def tables(results: Results) -> dict[str, TextTable]:
    """Returns the tables of the paper of which a run is finished, or one of each setting, by name."""
    content = results.grid.content
    finished = {f"{run.run.setting}/{run.run.method}" for run in results.runs}
    if content.printed:
        names = [name for name in content.printed if finished & {cell.run for cell in cells_of(content.printed, name)}]
        return {name: printed_report.table(content, name, results.runs) for name in names}
    return {setting: _table(results, setting) for setting in content.settings}


def markdown(results: Results) -> str:
    """Returns the whole report."""
    grid = results.grid
    blocks = [f"# {grid.content.title}", _missing(results)]
    if mixed := _bullets(mixed_lines(results)):
        blocks += [mixed, _NO_PAIR]
    blocks.append(_bullets(sentence(grid, answer) for answer in results.answers))
    if grid.content.num_tests:
        blocks.append(_how_tested(len(grid.content.seeds), grid.content.num_tests))
    blocks += ["## What was run", _bullets(_what_was_run(results))]
    pictures = grid_figures.figures_of(results)
    for name, table in tables(results).items():
        blocks += [f"## {table.title}", table.markdown()]
        if not grid.content.printed:
            blocks += _setting_blocks(results, name)
        blocks += [f"![{picture}]({picture})" for picture in pictures if picture.startswith((f"{name}-", f"{name}."))]
    if results.choices:
        blocks += ["## Choice on validation data", _choices(results).markdown()]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _setting_blocks(results: Results, setting: str) -> Iterator[str]:
    """Yields what follows the table of a setting."""
    yield _nets(results, setting).markdown()
    answers = [answer for answer in results.answers if answer.setting == setting]
    rows = [_difference(answer, part) for answer in answers for part in answer.parts]
    if rows:
        heads = ("first", "second", "measure", "allowed", "difference", "sd", "interval", "p", "seeds", "by seed")
        yield TextTable("", heads, rows, 3, below=[_OF_DIFFERENCES]).markdown()
    yield _bullets(_not_alike(results, setting))


def sentence(grid: Grid, answer: Answer) -> str:
    """Returns an answer in words and numbers."""
    where = f" In {answer.setting}:" if answer.setting and len(grid.content.settings) > 1 else ""
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
    if not part.is_tested:
        notes.append("judged by its mean: an estimate, not a test")
    if part.num_unreached:
        notes.append(f"{counted(part.num_unreached, 'run')} never reached the target")
    return f"{part.condition.measure} {_signed(part.measure, part.mean)} ({', '.join(notes)})"


def _missing(results: Results) -> str:
    """Returns how many final runs are missing; '' if none is."""
    missing = len(finals(results.grid, {})) - sum(run.run.phase == "final" for run in results.runs)
    if not missing:
        return ""
    runs = counted(missing, "final run")
    return f"**This grid is not finished: {runs} missing.** Questions without their runs are open."


def mixed_lines(results: Results) -> Iterator[str]:
    """Yields a line for each seed of a setting whose runs were not all made by the same code, versions and platform."""
    for setting in results.grid.content.settings:
        for runs in results.by_seed(setting):
            first = runs[0].computed_by.items()
            differ = sorted({name for run in runs for name, _ in run.computed_by.items() ^ first})
            made_by = {}
            for run in runs:
                made_by[run.run.method] = ", ".join(f"{name} {run.computed_by.get(name)}" for name in differ)
            if differ:
                groups = [f"{', '.join(methods)} by {text}" for text, methods in _methods_by(made_by).items()]
                seed = runs[0].run.seed
                yield f"**The runs of seed {seed} in {setting} were not made alike:** {'; '.join(groups)}."


def _methods_by(values: Mapping[str, str]) -> dict[str, list[str]]:
    """Returns the methods that have each of these values."""
    methods: dict[str, list[str]] = {}
    for method, text in values.items():
        methods.setdefault(text, []).append(method)
    return methods


def _how_tested(num_seeds: int, num_tests: int) -> str:
    return (
        f"Differences are paired by seed and positive where the first method is better. Tests are exact sign-flip "
        f"permutation tests, two-sided, over {num_seeds} seeds, with Holm's correction over "
        f"{counted(num_tests, 'test')}; the smallest p-value that one can have is "
        f"{smallest_p(num_seeds, num_tests):.2g}, the level {ALPHA:g}. Intervals are those of the same test, not "
        f"corrected."
    )


def _what_was_run(results: Results) -> Iterator[str]:
    grid = results.grid
    runs = results.runs
    num_final = sum(run.run.phase == "final" for run in runs)
    digests = dict.fromkeys(f"`{run.note.study}`" for run in runs) or {f"`{grid.text_digest}`": None}
    commits = sorted({run.note.commit or "none (no git there)" for run in runs})
    code = sorted({str(run.made_with.get("git")) for run in runs})
    spent_s = sum(run.seconds.get("wall", 0.0) * run.rounds for run in runs)
    yield f"file: `{grid.path.name}`, SHA-256 {', '.join(digests)}, commit {', '.join(commits) or '-'}"
    yield f"{num_final} of {len(finals(grid, {}))} final runs, seeds {', '.join(map(str, grid.content.seeds))}"
    yield f"{len(runs) - num_final} tuning runs on validation data"
    yield f"code: commit {', '.join(code) or '-'}; all rounds took {duration(spent_s)} of one core"
    yield from dict.fromkeys(_versions(run) for run in runs)
    if results.changes:
        yield results.changes
    if changed := sum(str(run.made_with.get("git")).endswith(DIRTY) for run in runs):
        yield f"careful: {counted(changed, 'run')} began in a checkout with changes that were not committed"
    yield from unlike(results)
    yield from _choices_at_edges(results)


def _versions(run: RunRecord) -> str:
    versions = run.made_with.get("versions") or {}
    return f"{', '.join(f'{name} {number}' for name, number in versions.items())}; {run.made_with.get('platform')}"


def unlike(results: Results) -> list[str]:
    """Returns a line for each thing that runs of one seed and setting do not share; one line where they share all.

    A run's digest of its cohorts is that of all its rounds, so it is compared with those of as many rounds.
    """
    methods: dict[str, set[str]] = {}
    for setting in results.grid.content.settings:
        for key, words in _SHARED.items():
            for runs in results.by_seed(setting):
                for run in runs:
                    first = next(other for other in runs if key != "cohorts" or other.rounds == run.rounds)
                    if getattr(run, key) != getattr(first, key):
                        line = f"had other {words} than {first.run.method}"
                        methods.setdefault(f"careful: in {setting}, {{}} {line}", set()).add(run.run.method)
    nothing = "for each seed and setting all methods had the same examples, partition, cohorts and initial values"
    return [line.format(", ".join(sorted(names))) for line, names in methods.items()] or [nothing]


def _choices_at_edges(results: Results) -> Iterator[str]:
    """Yields a line for each chosen number that is the lowest or the highest of at least three that the method's grid
    has: a better one may lie beyond, where the option allows it.
    """
    settings: dict[str, list[str]] = {}
    for (setting, method), choice in results.choices.items():
        trials = results.grid.content.methods[method].trials
        for key, chosen in trials[choice.trial].items():
            values = [trial.get(key) for trial in trials]
            tried: set[Any] = {number for number in values if type(number) in (int, float)}
            if len(tried) > 2 and chosen in (min(tried), max(tried)):
                edge = "lowest" if chosen == min(tried) else "highest"
                line = f"{method} took the {edge} {key} that was tried, {yaml_text.flow(chosen)}"
                settings.setdefault(line, []).append(setting)
    for line, names in settings.items():
        yield f"careful: in {', '.join(names)}, {line}"


def _table(results: Results, setting: str) -> TextTable:
    """Returns a line for each method: its trial, and every measure's mean and sample standard deviation. A measure
    without any number has no column, unless it is a target that no run reached.
    """
    runs = results.finals(setting)
    measures = {
        name: measure
        for name, measure in results.grid.content.measures.items()
        if measure.is_to_target or any(value(run, measure) is not None for run in runs)
    }
    lines = []
    for method in results.grid.content.methods:
        own = results.finals(setting, method)
        choice = results.choices.get((setting, method))
        chosen = _trial(results, method, choice.trial) if choice else "-"
        cells = [_mean(measure, own) for measure in measures.values()]
        lines.append((method, chosen, str(len(own)), *cells))
    return TextTable(f"Setting {setting}", ["method", "chosen", "seeds", *measures], lines, 2)


def _nets(results: Results, setting: str) -> TextTable:
    """Returns a line for each net of each method: its size and its accuracy."""
    lines = []
    for method in results.grid.content.methods:
        own = results.finals(setting, method)
        if not own:
            continue
        sizes = {net["name"]: net for net in own[0].nets}
        last = own[0].records[-1]
        for name in dict.fromkeys([*sizes, *net_scores(last), *([CLIENTS] if CLIENTS in last else [])]):
            net = sizes.get(name, {})
            ends = _mean(Measure(quantity="accuracy", net=name), own)
            best = _mean(Measure(quantity="accuracy", net=name, of="best"), own)
            lines.append((method, name, si(net.get("params")), si(net.get("macs")), ends, best))
    return TextTable("", ["method", "net", "params", "MACs", "accuracy", "best"], lines, 2)


def _choices(results: Results) -> TextTable:
    """Returns a line for each trial of each method in each setting."""
    tuning = results.grid.content.tuning
    assert tuning is not None
    measure = results.grid.content.measures[tuning.measure]
    lines = []
    for (setting, method), choice in results.choices.items():
        for number, score in enumerate(choice.scores):
            values = _trial(results, method, number)
            shown = "-" if score is None else _shown(measure, score)
            mark = "**" if number == choice.trial else ""
            lines.append((setting, method, f"{mark}{values}{mark}", f"{mark}{shown}{mark}"))
    seeds = ", ".join(map(str, tuning.seeds))
    above = f"{tuning.measure} on validation data, mean over seeds {seeds}; the chosen trial is bold."
    return TextTable("", ("setting", "method", "trial", "score"), lines, 3, above=[above])


def _difference(answer: Answer, part: Part) -> Sequence[str]:
    low, high, confidence = part.interval
    differences = list(part.differences.values())
    deviation = mean_std(differences)[1]
    return (
        answer.question.first,
        answer.question.second,
        part.condition.measure,
        _signed(part.measure, -part.condition.margin or 0.0),
        _signed(part.measure, part.mean),
        "-" if deviation is None else _signed(part.measure, deviation, unit=False).lstrip("+"),
        f"{_signed(part.measure, low, unit=False)} to {_signed(part.measure, high)} ({100 * confidence:.1f} %)",
        f"{part.p:.3g}" if part.is_tested else "-",
        ", ".join(map(str, part.differences)),
        ", ".join(_signed(part.measure, each, unit=False) for each in differences),
    )


def _trial(results: Results, method: str, number: int) -> str:
    values = results.grid.content.methods[method].trials[number]
    return ", ".join(f"{key} {yaml_text.flow(value)}" for key, value in values.items()) or "-"


def _mean(measure: Measure, runs: Sequence[RunRecord]) -> str:
    known = [number for run in runs if (number := value(run, measure)) is not None]
    mean, std = mean_std(known)
    of = f" ({len(known)} of {len(runs)})" if len(known) < len(runs) else ""
    if mean is None:
        return "-"
    if std is None:
        return _shown(measure, mean) + of
    return f"{_shown(measure, mean, unit=False)} ± {_shown(measure, std)}{of}"


def _shown(measure: Measure, number: float, *, unit: bool = True) -> str:
    if not measure.is_share and measure.quantity != "seconds":
        return si(number)
    text = percent(number) if measure.is_share else seconds(number)
    return text if unit else text.partition(" ")[0]


def _signed(measure: Measure, number: float, *, unit: bool = True) -> str:
    if measure.is_share:
        return f"{100 * number:+.2f}{' points' if unit else ''}"
    return ("-" if number < 0 else "+") + _shown(measure, abs(number), unit=unit)


def _not_alike(results: Results, setting: str) -> Iterator[str]:
    """Yields on how many examples the methods train, and a line for each setting of their configs that differs."""
    configs = {method: config for (of, method), config in results.configs.items() if of == setting}
    examples = {}
    for method, config in configs.items():
        try:
            tiers = forecast(config, 1).tiers
        except UserError:  # the data are needed for it and are not here
            continue
        examples[method] = si(sum(tier.client_rounds * tier.training_examples for tier in tiers))
    if examples:
        yield f"examples passed forward and backward in a run, by the plan: {_majority(examples)}"
    plain = {method: settings_of(config.to_dict()) for method, config in configs.items()}
    for key in next(iter(plain.values()), {}):
        values = {method: own[key] for method, own in plain.items() if key in own}
        if not key.startswith("method.") and len(values) == len(plain) and len(set(values.values())) > 1:
            yield f"not alike: {key} is {_majority(values)}"


def _majority(values: Mapping[str, str]) -> str:
    """Returns `0.5; hermes, lgfedavg 0.1`: the value that most have, then the others, each with its methods."""
    methods = _methods_by(values)
    common, *others = sorted(methods, key=lambda text: -len(methods[text]))
    return "; ".join([common, *(f"{', '.join(methods[text])} {text}" for text in others)])


def values_csv(results: Results) -> str:
    """Returns every run's numbers as CSV, exact."""
    rows: list[dict[str, object]] = []
    for record in results.runs:
        run = record.run
        row = {"phase": run.phase, "setting": run.setting, "method": run.method, "trial": run.trial, "seed": run.seed}
        rows.append(row | {name: value(record, measure) for name, measure in results.grid.content.measures.items()})
    return table_text.comma_separated(rows)


def latex(results: Results) -> str:
    """Returns the tables for a paper (they need the package booktabs)."""
    lines = []
    for name, table in tables(results).items():
        columns = "l" * table.num_left + "r" * (len(table.heads) - table.num_left)
        lines += [f"% {name}", f"\\begin{{tabular}}{{{columns}}}", "\\toprule", _latex_row(table.heads)]
        lines += ["\\midrule", *map(_latex_row, table.lines), "\\bottomrule", "\\end{tabular}", ""]
    return "\n".join(lines)


def _latex_row(cells: Sequence[str]) -> str:
    escapes = str.maketrans({"%": "\\%", "_": "\\_", "&": "\\&", "#": "\\#", "±": "$\\pm$"})
    return " & ".join(cell.translate(escapes) for cell in cells) + r" \\"
