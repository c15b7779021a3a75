"""Puts runs that differ by nothing but their seed together, and compares such settings seed by seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from fedmpi.config.schema import settings
from fedmpi.errors import ConfigError
from fedmpi.report.records import divergences
from fedmpi.results.figure import Line, Panel
from fedmpi.results.frame import curve, name_of, points
from fedmpi.results.run import Run


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

    def recorded(self, quantity: str) -> list[str]:
        """Lists the nets that have this quantity: the clients' own nets have an accuracy and no loss."""
        return [net for net in self.tested if self.ends(net, quantity)]

    def ends(self, net: str, quantity: str = "accuracy") -> dict[int, tuple[int, float]]:
        """Returns the last round in which this net was tested, and its value there, by seed."""
        found = {run.seed: points(run.records, net, quantity) for run in self.runs}
        return {seed: (of_run[-1][0], of_run[-1][2]) for seed, of_run in found.items() if of_run}

    def line(self, net: str, x: str, quantity: str = "accuracy") -> Line:
        """Averages the seeds by round (or by what was moved or computed up to it); the band is their range."""
        return curve(self.name, [run.records for run in self.runs], net, quantity, x)


def grouped(runs: Iterable[Run]) -> list[Group]:
    """Groups runs that differ by nothing but their seed, in the order of their first runs. Runs that begin with the
    state of another run are a setting of their own.
    """
    by_setting: dict[tuple[tuple[tuple[str, str], ...], bool], list[Run]] = {}
    for run in dict.fromkeys(runs):
        setting = tuple(settings(run.values).items())
        by_setting.setdefault((setting, bool(run.init_from)), []).append(run)
    keys = _telling_keys([dict(setting) for setting, _ in by_setting])
    groups = []
    for (setting, _), own in by_setting.items():
        longest: dict[int, Run] = {}
        for run in sorted(own, key=lambda one: -one.done):
            longest.setdefault(run.seed, run)
        chosen = [longest[seed] for seed in sorted(longest)]
        shorter = [run for run in own if run not in chosen]
        groups.append(Group(_name(dict(setting), keys) + _origins(chosen), chosen, shorter))
    return groups


def _origins(runs: Iterable[Run]) -> str:
    """Returns `, from RUN@3`; '' for runs that begin with a state of their own."""
    names = list(dict.fromkeys(run.init_from for run in runs if run.init_from))
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f", from {names[0]}{more}" if names else ""


def _telling_keys(found: Sequence[Mapping[str, str]]) -> list[str]:
    """Lists the keys that tell these settings apart: names of sections alone, where those say enough, or all whose
    values differ.
    """
    values: dict[str, set[str]] = {}
    for key, value in chain.from_iterable(setting.items() for setting in found):
        values.setdefault(key, set()).add(value)
    differ = sorted((key for key, own in values.items() if len(own) > 1), key=lambda key: not key.endswith(".name"))
    sections = [key for key in differ if _is_of_section(key)]
    names = {_name(setting, sections) for setting in found}
    return sections if len(names) == len(found) else differ


def _name(setting: Mapping[str, str], keys: Sequence[str]) -> str:
    """Returns `fedhm`, `fedhm, train.lr 0.1`, or `method.server fedadam`."""
    given = [(key, setting[key]) for key in keys if key in setting]
    parts = [value if _is_of_section(key) else f"{key.removesuffix('.name')} {value}" for key, value in given]
    return ", ".join(parts) or setting["method.name"]


def _is_of_section(key: str) -> bool:
    """Says whether this is the name of a section, as `method.name`, which says what it is without its key."""
    return key.endswith(".name") and key.count(".") == 1


def cautions(groups: Iterable[Group]) -> list[str]:
    """Returns a line for each run that is not shown, or not to its last round, or without clients that diverged, and
    for what is missing of its records.
    """
    lines = []
    for group in groups:
        for run in group.shorter:
            (longer,) = (one.name for one in group.runs if one.seed == run.seed)
            better = f"{longer} has the same settings and seed, and as many rounds or more"
            lines.append(f"{run.name} is left out: {better}")
        for run in group.runs:
            if run.ending:
                shown = f"shown up to round {run.done:,} of {run.num_rounds:,}"
                how_far = shown if run.tested else "not shown: no round was tested"
                lines.append(f"{run.name} {run.ending.briefly()}; {how_far}")
            lines += [f"{run.name}: {line}" for line in (*divergences(run.records), *missing(run))]
    return lines


def missing(run: Run) -> list[str]:
    """Returns a line for each stretch of rounds without records."""
    gaps = [f"rounds {first} to {last}" for first, last in run.gaps]
    return [f"rounds.jsonl has no record of {gap}; sums leave missing rounds out" for gap in gaps]


def panels(groups: Sequence[Group], nets: Sequence[str], x: str, y: str, names: Sequence[str] = ()) -> list[Panel]:
    """Returns a panel for each of `nets`, or without them for the first net of each setting that has a `y`; `names` are
    the user's. Raises ConfigError where a panel would be empty, and for a name without a `y`.
    """
    if names and len(names) != len(groups):
        of = "; ".join(group.name for group in groups)
        raise ConfigError("--names", f"{len(names)} names for {len(groups)} lines: {of}")
    chosen = _chosen_nets(groups, nets, y)
    found = []
    for net in chosen:
        lines = {}
        for place, group in enumerate(groups):
            seeds = len(group.ends(net, y))
            label = f"{group.name}, mean of {seeds} seeds" if seeds > 1 else group.name
            line = group.line(net, x, y)
            if line.x:
                lines[place] = replace(line, label=names[place] if names else label)
        if not lines:
            raise ConfigError("--tier", f"{net}: its seeds have no tested round in common; draw one of them")
        # One panel has no title: a paper's caption is one. What was tested stands beside the axis.
        shown = name_of(net)
        title, label = (shown, f"test {y}") if len(chosen) > 1 else ("", f"test {y}, {shown}")
        found.append(Panel(lines, x, y, title, label))
    if not any(any(line.x) for panel in found for line in panel.lines.values()):
        raise ConfigError("--x", f"these runs have no {x}, so all points would stand at 0; draw by rounds")
    return found


def _chosen_nets(groups: Sequence[Group], nets: Sequence[str], y: str) -> list[str]:
    """Returns `nets`, or without them the first net of each setting that has a `y`. Raises ConfigError."""
    recorded = [own for group in groups if (own := group.recorded(y))]
    if not recorded:
        why = "clients' own nets are tested for accuracy alone; draw the accuracy"
        raise ConfigError("--y", f"no {y} was recorded: {why}")
    known = dict.fromkeys(chain.from_iterable(recorded))
    if unknown := [net for net in nets if net not in known]:
        raise ConfigError("--tier", f"no {y} was recorded of {', '.join(unknown)}; allowed: {', '.join(known)}")
    return list(dict.fromkeys(nets or [own[0] for own in recorded]))
