"""Puts runs that differ by nothing but their seed together, and compares such settings seed by seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import pandas as pd

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

    def line(self, net: str, x: str, quantity: str = "accuracy") -> Line:
        """Averages the seeds by round (or by what was moved or computed up to it); the band is their range."""
        return curve(self.name, [run.records for run in self.runs], net, quantity, x)


def ends(groups: Iterable[Group], quantity: str = "accuracy") -> pd.DataFrame:
    """Returns a line for each net of each run that has this quantity, setting by setting and net by net: its seed, the
    last round in which the net was tested, and its value there. The clients' own nets have an accuracy and no loss.
    """
    lines = []
    for group in groups:
        for net, run in product(group.tested, group.runs):
            tests = points(run.records, net, quantity)
            if len(tests):
                lines.append((group.name, net, run.seed, tests.index[-1], tests["y"].iloc[-1]))
    return pd.DataFrame(lines, columns=["setting", "net", "seed", "round", "value"])


def grouped(runs: Iterable[Run]) -> list[Group]:
    """Groups runs that differ by nothing but their seed, in the order of their first runs. Runs that begin with the
    state of another run are a setting of their own.
    """
    found = list(dict.fromkeys(runs))
    table = pd.DataFrame([settings(run.values) for run in found])
    keys = _telling_keys(table.drop_duplicates())
    lengths = pd.DataFrame({"seed": [run.seed for run in found], "done": [run.done for run in found]})
    has_origin = pd.Series([bool(run.init_from) for run in found])
    groups = []
    for _, own in lengths.groupby([*map(table.get, table), has_origin], sort=False, dropna=False):
        longest = own.sort_values("done", ascending=False, kind="stable").drop_duplicates("seed").sort_values("seed")
        chosen = [found[place] for place in longest.index]
        shorter = [found[place] for place in own.index.difference(longest.index)]
        groups.append(Group(_name(table.loc[own.index[0]], keys) + _origins(chosen), chosen, shorter))
    return groups


def _origins(runs: Iterable[Run]) -> str:
    """Returns `, from RUN@3`; '' for runs that begin with a state of their own."""
    names = list(dict.fromkeys(run.init_from for run in runs if run.init_from))
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f", from {names[0]}{more}" if names else ""


def _telling_keys(table: pd.DataFrame) -> list[str]:
    """Lists the keys that tell these settings apart: names of sections alone, where those say enough, or all whose
    values differ.
    """
    differ = sorted(table.columns[table.nunique() > 1], key=lambda key: not key.endswith(".name"))
    sections = [key for key in differ if _is_of_section(key)]
    names = {_name(setting, sections) for _, setting in table.iterrows()}
    return sections if len(names) == len(table) else differ


def _name(setting: pd.Series, keys: Sequence[str]) -> str:
    """Returns `fedhm`, `fedhm, train.lr 0.1`, or `method.server fedadam`."""
    given = setting[keys].dropna().items()
    parts = [value if _is_of_section(key) else f"{key.removesuffix('.name')} {value}" for key, value in given]
    return ", ".join(parts) or str(setting["method.name"])


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
    recorded = ends(groups, y)
    chosen = _chosen_nets(recorded, nets, y)
    num_seeds = recorded.groupby(["setting", "net"]).size()
    found = []
    for net in chosen:
        lines = {}
        for place, group in enumerate(groups):
            line = group.line(net, x, y)
            if line.x:
                seeds = num_seeds[group.name, net]
                label = f"{group.name}, mean of {seeds} seeds" if seeds > 1 else group.name
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


def _chosen_nets(recorded: pd.DataFrame, nets: Sequence[str], y: str) -> list[str]:
    """Returns `nets`, or without them the first net of each setting that has a `y`. Raises ConfigError."""
    if recorded.empty:
        why = "clients' own nets are tested for accuracy alone; draw the accuracy"
        raise ConfigError("--y", f"no {y} was recorded: {why}")
    known = recorded["net"].unique()
    if unknown := [net for net in nets if net not in known]:
        raise ConfigError("--tier", f"no {y} was recorded of {', '.join(unknown)}; allowed: {', '.join(known)}")
    return list(dict.fromkeys(nets or recorded.drop_duplicates("setting")["net"]))
