"""What a page shows of several runs beside each other: curves, a table, and differences paired by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedmpi.errors import counted
from fedmpi.pages import charts, svg
from fedmpi.pages.charts import Line
from fedmpi.pages.facts import Facts
from fedmpi.pages.prose import PALE_CURVES, name_of
from fedmpi.pages.settings import LEAST_SEEDS, MOST_PAIRED, Group, differences, grouped, mean_and_half_width, setting_of
from fedmpi.report.diverged import divergences
from fedmpi.store.units import percent

_AXES: tuple[tuple[str, str, str, svg.Shown | None], ...] = (
    ("rounds", "rounds", "round", None),
    ("bytes", "bytes", "bytes of all clients", svg.prefixed("B")),
    ("macs", "MACs", "MACs of training", svg.prefixed("")),
)
"""What accuracy is drawn by: the axis, its word in the caption, its label and how its numbers are shown."""
_Section = dict[str, Any]


def content(runs: Sequence[Facts]) -> dict[str, Any]:
    """What the template of a page is given. Of several runs of one setting and seed one is shown (`grouped`), and none
    that was not tested yet.
    """
    found = grouped(runs)
    tested = (replace(group, runs=tuple(run for run in group.runs if run.tested)) for group in found)
    groups = [group for group in tested if group.runs]
    seeds = [len(group.runs) for group in groups]
    num_runs, lead = counted(sum(seeds), "run"), "No round of these runs has been tested yet."
    if groups:
        lead = (
            f"{num_runs} of {counted(len(groups), 'setting')}, {_span(seeds)} seed{'s' * (max(seeds) > 1)} each. "
            "Lines are means over seeds, bands reach from the lowest to the highest seed."
        )
    names = [group.name for group in groups or found]
    sections = [_curves(groups), _table(groups), _differences(groups)]
    return {
        "title": " and ".join(names) if len(names) < 4 else f"{len(names)} settings",
        "state": num_runs if groups else "not tested yet",
        "lead": lead,
        "figures": [],
        "notes": to_mind(runs, found),
        "sections": [section for section in sections if section],
        "configs": [(f"The resolved config of {group.name}", group.runs[0].config_text) for group in groups or found],
    }


def to_mind(given: Sequence[Facts], groups: Sequence[Group]) -> list[str]:
    """A line for each run that is not shown, or not to its last round, or without clients that diverged, and for what
    is missing of its files.
    """
    found: list[str] = []
    shown = {(setting_of(run), run.config["seed"]): run for group in groups for run in group.runs}
    for run in given:
        name, instead = run.folder.name, shown[setting_of(run), run.config["seed"]]
        if instead.folder != run.folder:
            better = f"{instead.folder.name} has the same settings and seed, and as many rounds or more"
            found.append(f"{name} is left out: {better}")
            continue
        how_far = (
            f"shown up to round {run.done:,} of {run.rounds:,}" if run.tested else "not shown: no round was tested"
        )
        found += [f"{name} {run.ending.briefly()}; {how_far}"] if run.ending else []
        found += [f"{name}: {line}" for line in (*divergences(run.records), *run.notes)]
    return list(dict.fromkeys([*found, *(line for run in given for line in run.beside)]))


def _curves(groups: Sequence[Group]) -> _Section:
    """The curve of each group's first tested net: the clients' own, or the largest tier."""
    first = [(group, group.tested[0]) for group in groups if group.tested]
    found = []
    for x, word, label, shown in _AXES:
        lines = [group.line(tier, x, "accuracy", group.name) for group, tier in first]
        if any(place for line in lines for place in line.x):  # nobody may have moved anything
            found.append(charts.lines(lines, f"Accuracy by {word}", label, x=shown, y=svg.percents))
    sized = [line for line in _by_size(groups) if line.x]
    if any(len(line.x) > 1 for line in sized):
        found.append(charts.lines(sized, "Last accuracy by size", "parameters", x=svg.prefixed(""), y=svg.percents))
    tiers = ", ".join(dict.fromkeys(name_of(tier) for _, tier in first))
    text = f"The curves are of {tiers}: of each setting its clients' own nets, or else its largest net."
    if any(run.parent for group, _ in first for run in group.runs):
        text += f" {PALE_CURVES} the run that a branch names."
    return {"title": "Accuracy", "text": text if first else "No round has been tested yet.", "charts": found}


def _by_size(groups: Sequence[Group]) -> list[Line]:
    """The last accuracy of every tier over the parameters of its net: mean, lowest and highest of the seeds."""
    found = []
    for group in groups:
        tested = (row for row in group.runs[0].tiers if row.get("params") and row["name"] in group.tested)
        sized = sorted((row["params"], row["name"]) for row in tested)
        values = [[*group.last(name).values()] for _, name in sized]
        means, low, high = ([float(end(own)) for own in values] for end in (np.mean, np.min, np.max))
        found.append(Line(group.name, [size for size, _ in sized], means, low, high))
    return found


def _table(groups: Sequence[Group]) -> _Section:
    rows = []
    for group in groups:
        for tier in group.tested:
            rounds, values = zip(*group.ends(tier).values(), strict=True)
            mean = mean_and_half_width(values)[0]
            deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
            said = percent(mean) if deviation is None else f"{100 * mean:.2f} ± {100 * deviation:.2f} %"
            range_ = [percent(min(values)), percent(max(values))]
            rows.append([group.name, name_of(tier), len(values), _span(rounds), said, *range_])
    heads = ["setting", "tier", "seeds", "round", "last accuracy", "lowest", "highest"]
    text = "Mean ± sample standard deviation over seeds; each value is of its run's last tested round."
    return {"title": "Results", "heads": heads, "rows": rows, "text": text} if rows else {}


def _span(numbers: Sequence[int]) -> str:
    """`200`, or `18 to 200`."""
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _differences(groups: Sequence[Group]) -> _Section:
    compared = [*differences(groups)]
    rows = [
        [
            f"{found.first} minus {found.second}",
            name_of(found.tier),
            found.num_seeds,
            _span(found.rounds[0]) if found.is_of_equal_rounds else " and ".join(map(_span, found.rounds)),
            f"{100 * found.mean:+.2f}",
            "-"
            if found.half_width is None
            else f"{100 * (found.mean - found.half_width):+.2f} to {100 * (found.mean + found.half_width):+.2f}",
        ]
        for found in compared
    ]
    text = (
        "Differences of the last accuracy in percentage points, paired by seed, with 95\u00a0% intervals by Student's "
        f"t (none for fewer than {LEAST_SEEDS} seeds). They are not corrected for the number of comparisons."
    )
    if not all(found.is_of_equal_rounds for found in compared):
        text += (
            " Where a row names the rounds of both settings, its runs were not tested last in the same round, and the "
            "difference is one of training, too."
        )
    heads = ["settings", "tier", "seeds", "round", "difference", "interval"]
    text += f" Of {len(groups)} settings, each is compared with the first." if len(groups) > MOST_PAIRED else ""
    return {"title": "Differences", "heads": heads, "rows": rows, "text": text} if rows else {}
