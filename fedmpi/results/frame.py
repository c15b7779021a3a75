"""Turns the records of runs into tables: the points of curves, what a run ends with, and means over seeds."""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from typing import Any

import pandas as pd

from fedmpi.config.schema import settings
from fedmpi.costs import FLOAT32_BYTES
from fedmpi.errors import ConfigError, counted
from fedmpi.report.records import Record, incidents, is_whole, net_scores, score_name, scores_of
from fedmpi.results.archive import COSTS, RunRecord
from fedmpi.results.figure import Line, Panel
from fedmpi.results.grid_file import GridRun, Measure
from fedmpi.results.run import Run

SIMULATED = ("simulated_s", "simulated_j")
"""Keys of a record: time and energy of the round on the clients' devices."""
_KERNEL_KEYS = {"kernels_needed": "effective_kernels", "clients_per_kernel": "clients_per_kernel"}
"""The keys of quantities in the diagnostics of a method with kernels."""


def nets_of(records: Sequence[Record], net: str) -> list[str]:
    """Returns the tested nets that `net` means: a name, or `largest`, `smallest`, `mean` (all of them)."""
    tested = list(dict.fromkeys(name for record in records for name in net_scores(record)))  # the largest first
    return {"largest": tested[:1], "smallest": tested[-1:], "mean": tested}.get(net) or [net]


def spent(records: Sequence[Record], cost: str) -> pd.Series:
    """Returns what was spent up to each of these rounds: `rounds`, `bytes` that real clients would have moved down and
    up, training `macs`, `uploaded_parameters`, or a cost by its key in the records, as `simulated_s` and `simulated_j`
    on the clients' devices (NaN without a clock).
    """
    rounds = pd.DataFrame(records, columns=["round", *COSTS]).astype(float)
    if cost == "rounds":
        return rounds["round"]
    up = rounds["protocol_up_bytes"]
    costs = {
        "bytes": up + rounds["protocol_down_bytes"],
        "macs": rounds["training_macs"],
        "uploaded_parameters": up / FLOAT32_BYTES,
        **rounds,
    }
    return costs[cost].cumsum()


def _number(record: Record, net: str, quantity: str) -> float | None:
    if quantity == "train_loss":
        return record["train_loss"]
    if quantity not in _KERNEL_KEYS:
        scores = scores_of(record, net)
        return scores.get(score_name(scores) if quantity == "accuracy" else quantity)
    # Of several numbers, as lowest, mean, highest, the mean.
    number = _note(record, "kernels", net).get(_KERNEL_KEYS[quantity])
    return number[1] if isinstance(number, list) else number


def _note(record: Record, *keys: str) -> Mapping[str, Any]:
    """Returns what the method notes in a record under these keys, one within the other; {} for nothing."""
    note = record
    for key in ("method", *keys):
        note = note.get(key) or {}
    return note


def points(records: Sequence[Record], net: str, quantity: str = "accuracy", x: str = "rounds") -> pd.DataFrame:
    """Returns x and y of each round that has this quantity, by round; y is the mean of the nets that `net` means, x the
    round or what was `spent` up to it. By `kernel` there is a point for each kernel: the mean number of its clients.
    """
    if x == "kernel":
        counts = [each for record in records if (each := _note(record, "kernels", net).get("clients_of_kernel"))]
        y = pd.DataFrame(counts).mean()
        y.index += 1
        return pd.DataFrame({"x": y.index.astype(float), "y": y})
    nets = nets_of(records, net)
    lines = []
    for record, place in zip(records, spent(records, x), strict=True):
        numbers = [_number(record, name, quantity) for name in nets]
        known = [number for number in numbers if number is not None]
        if len(known) == len(nets) and not math.isnan(place):
            lines.append((record["round"], place, statistics.fmean(known)))
    return pd.DataFrame(lines, columns=["round", "x", "y"]).set_index("round")


def curve(
    label: str, runs: Iterable[Sequence[Record]], net: str, quantity: str = "accuracy", x: str = "rounds"
) -> Line:
    """Averages the curves of several seeds in the rounds that all of them have. The band is from the lowest to the
    highest. Seeds that have no point are left out.
    """
    of_seeds = [found for records in runs if len(found := points(records, net, quantity, x))]
    if not of_seeds:
        return Line(label, [], [])
    shared = pd.concat(of_seeds, axis=1, join="inner")
    xs = shared[["x"]].mean(axis=1).tolist()
    ys = shared[["y"]].mean(axis=1).tolist()
    if len(of_seeds) == 1:
        return Line(label, xs, ys)
    ends = shared[["y"]].agg(["min", "max"], axis=1)
    return Line(label, xs, ys, ends["min"].tolist(), ends["max"].tolist(), len(of_seeds))


def tier_curves(records: Sequence[Record], *keys: str) -> list[Line]:
    """Returns a curve for each tier of a number that the method notes by tier under these keys. Zeros are left out,
    because they have no place on an axis in logarithms.
    """
    notes = [_note(record, *keys) for record in records]
    table = pd.DataFrame(notes, index=[record["round"] for record in records]).astype(float)
    curves = [(name_of(tier), numbers[numbers != 0].dropna()) for tier, numbers in table.items()]
    return [Line(name, found.index.tolist(), found.tolist()) for name, found in curves if len(found)]


def name_of(net: str) -> str:
    """Puts a word before names of tiers, which are often numbers."""
    return f"tier {net}" if net.replace(".", "", 1).isdigit() else net


def value(run: RunRecord, measure: Measure) -> float | None:
    """Returns the number that a run ends with; None where it has none, as for a target that it never reached."""
    if measure.quantity in ("seconds", "time_share"):
        part_s = run.seconds.get("wall" if measure.net in ("", "largest") else measure.net)
        return part_s if part_s is None or measure.quantity == "seconds" else part_s / run.seconds["wall"]
    cost = measure.quantity.removesuffix("_to_target")
    if cost in ("rounds", "bytes", "macs", *SIMULATED):
        if not is_whole(run.records):
            return None
        found = spent(run.records, cost)
        if measure.target is not None:
            tests = points(run.records, measure.net, x=cost)
            found = tests["x"][tests["y"] >= measure.target][:1]
    else:
        found = points(run.records, measure.net, measure.quantity)["y"]
        if measure.of == "best":
            found = found.cummin() if measure.quantity == "train_loss" else found.cummax()
    return float(found.iloc[-1]) if len(found) and not math.isnan(found.iloc[-1]) else None


def one_round_more(run: RunRecord, measure: Measure) -> float | None:
    """Returns what the whole run took and a round more; None but for a measure to a target of a net that it has."""
    if not (measure.is_to_target and is_whole(run.records) and len(points(run.records, measure.net))):
        return None
    return float(spent(run.records, measure.quantity.removesuffix("_to_target")).iloc[-1]) * (1 + 1 / run.rounds)


def values(runs: Iterable[RunRecord], measures: Mapping[str, Measure]) -> pd.DataFrame:
    """Returns a line for each run: the fields of `GridRun`, then what it ends with by each measure."""
    lines = []
    for run in runs:
        lines.append({**asdict(run.run), **{name: value(run, measure) for name, measure in measures.items()}})
    # As objects whole numbers stay whole, and a missing one None.
    return pd.DataFrame(lines, columns=[*(field.name for field in fields(GridRun)), *measures], dtype=object)


# Runs that differ by nothing but their seed.


@dataclass(frozen=True)
class Group:
    """Runs of one setting, the longest of each seed, in the order of their seeds; `name` has what sets the group apart
    from the others.
    """

    name: str
    runs: Sequence[Run]
    shorter: Sequence[Run] = ()
    """Other runs of these seeds."""

    @property
    def tested(self) -> list[str]:
        return list(dict.fromkeys(net for run in self.runs for net in run.tested))

    def nets_with(self, y: str) -> list[str]:
        return [net for net in self.tested if self.curve(net, y).x]

    def curve(self, net: str, y: str = "accuracy", x: str = "rounds") -> Line:
        return curve(self.name, [run.records for run in self.runs], net, y, x)


def grouped(runs: Iterable[Run]) -> list[Group]:
    """Groups runs that differ by nothing but their seed, in the order of their first runs. Runs that begin with the
    state of another run are a setting of their own.
    """
    by_setting: dict[tuple[Any, ...], list[Run]] = {}
    for run in dict.fromkeys(runs):
        by_setting.setdefault((*settings(run.values).items(), bool(run.init_from)), []).append(run)
    names = _names([settings(own[0].values) for own in by_setting.values()])
    groups = []
    for name, own in zip(names, by_setting.values(), strict=True):
        longest = {run.seed: run for run in sorted(own, key=lambda run: run.done)}
        chosen = [longest[seed] for seed in sorted(longest)]
        if origins := [*dict.fromkeys(run.init_from for run in chosen if run.init_from)]:
            name += f", from {origins[0]}" + (f" and {len(origins) - 1} more" if len(origins) > 1 else "")
        groups.append(Group(name, chosen, [run for run in own if run not in chosen]))
    return groups


def _names(of_groups: Sequence[Mapping[str, str]]) -> list[str]:
    """Names settings by their methods, as `fedhm`, or where these are the same by all that differs between them."""
    methods = [setting["method.name"] for setting in of_groups]
    if len({*methods}) == len(methods):
        return methods
    table = pd.DataFrame(of_groups)
    names = []
    for method, (_, row) in zip(methods, table[table.columns[table.nunique() > 1]].iterrows(), strict=True):
        parts = [f"{key.removesuffix('.name')} {value}" for key, value in row.dropna().items()]
        names.append(", ".join(parts) or method)
    return names


def cautions(groups: Iterable[Group]) -> Iterator[str]:
    """Yields a line for each run that is not shown, or not to its last round, or without clients that diverged, and
    for what is missing of its records.
    """
    for group in groups:
        for run in group.shorter:
            (longer,) = (one.name for one in group.runs if one.seed == run.seed)
            yield f"{run.name} is left out: {longer} has the same settings and seed, and as many rounds or more"
        for run in group.runs:
            if not run.is_finished:
                shown = f"shown up to round {run.done:,} of {run.num_rounds:,}"
                yield f"{run.name} {run.briefly()}; {shown if run.tested else 'not shown: no round was tested'}"
            for line in (*incidents(run.records), *missing(run)):
                yield f"{run.name}: {line}"


def missing(run: Run) -> list[str]:
    """Returns a line where rounds have no record; [] where all have one."""
    lacking = run.done - len(run.records)
    return [f"rounds.jsonl lacks {counted(lacking, 'round')}; sums leave them out"] if lacking else []


def panels(groups: Sequence[Group], nets: Sequence[str], x: str, y: str, names: Sequence[str] = ()) -> list[Panel]:
    """Returns a panel for each of `nets`, or without them for the first net of each setting that has a `y`. A line is
    the mean of a setting's seeds, its band their range; `names` are the user's. Raises ConfigError where a panel would
    be empty.
    """
    if names and len(names) != len(groups):
        of = "; ".join(group.name for group in groups)
        raise ConfigError("--names", f"{len(names)} names for {len(groups)} lines: {of}")
    recorded = [group.nets_with(y) for group in groups]
    scores = dict.fromkeys(run.best.score for group in groups for run in group.runs if run.tested)
    tested = " or ".join(scores) if y == "accuracy" else y
    chosen = dict.fromkeys(nets or [known[0] for known in recorded if known] or ["any net"])
    found = []
    for net in chosen:
        lines = {place: line for place, group in enumerate(groups) if any((line := group.curve(net, y, x)).x)}
        if not lines:
            known = ", ".join(dict.fromkeys(chain.from_iterable(recorded))) or "no net"
            problem = f"these runs have no {y} of {net} by {x}; their records have the {y} of {known}, always by rounds"
            raise ConfigError("--figure", problem)
        for place, line in lines.items():
            label = f"{line.label}, mean of {line.num_seeds} seeds" if line.num_seeds > 1 else line.label
            lines[place] = replace(line, label=names[place] if names else label)
        # One panel has no title: a paper's caption is one. What was tested stands beside the axis.
        shown = name_of(net)
        title, label = (shown, f"test {tested}") if len(chosen) > 1 else ("", f"test {tested}, {shown}")
        found.append(Panel(lines, x, y, title, label))
    return found
