"""The table of `jobs/compare.py` as people and programs read it, and the caption: what was equal and what was not."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, fields
from typing import Any, TextIO

from fedmpi.config import words, yaml_text
from fedmpi.config.schema import Config
from fedmpi.report.progress import printable
from fedmpi.store.units import si
from fedmpi.studies import table_text
from fedmpi.studies.runs import Budget, Row

# Budgets that differ from what most methods spend by more than this share are warned of.
TOLERANCE = 0.1
_HEADS = ("method", "tier", "accuracy", "params", "MACs", "bytes to target", "compute to target", "rounds to target")
_NUM_LEFT = 2
_NOT_COMPARED = ("seed", "rounds", "method", "mpi", "output")


def print_table(rows: Sequence[Row], caption: Sequence[str], stream: TextIO) -> None:
    table_text.print_lines(_HEADS, [row.cells() for row in rows], _NUM_LEFT, stream)
    print(*(printable(line, stream) for line in caption), sep="\n", file=stream, flush=True)


def markdown(rows: Sequence[Row], caption: Sequence[str], commands: Sequence[str]) -> str:
    lines = table_text.markdown_lines(_HEADS, [row.cells() for row in rows], _NUM_LEFT)
    notes = [f"- {line[0].upper()}{line[1:]}" for line in caption]
    head = ["# Methods compared", "", "The runs were made by", "", *(f"    {command}" for command in commands), ""]
    return "\n".join([*head, *lines, "", *notes, ""])


def comma_separated(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(field.name for field in fields(Row))
    writer.writerows(astuple(row) for row in rows)
    return text.getvalue()


# The caption.


def what_is_shown(
    seeds: Mapping[str, Sequence[int]], target: float, scale: float, overrides: Sequence[str]
) -> list[str]:
    """What the columns mean, and what was changed for all methods. `seeds` are each method's finished ones."""
    of_seeds, over_seeds = _of_seeds(seeds)
    changed = [f"all numbers of rounds are {scale:g} times those of the configs"] if scale != 1 else []
    changed += [f"set for all: {' '.join(overrides)}"] if overrides else []
    return [
        f"accuracy: after the last round{of_seeds}",
        f"to target: until an evaluation first gives this row {100 * target:g} % or more{over_seeds}; bytes (down and "
        "up) and compute (forward MACs x examples x epochs) are those of all clients together",
        "clients: each one's own net on its own test data, mean over clients; params and MACs (a forward pass of one "
        "example) are means over the clients' tiers",
        *changed,
    ]


def _of_seeds(seeds: Mapping[str, Sequence[int]]) -> tuple[str, str]:
    """What an accuracy is, and what a number to the target; with one seed there is neither mean nor deviation."""
    if not seeds:
        return "", ""
    numbers = _majority({method: ", ".join(map(str, finished)) for method, finished in seeds.items()})
    if all(len(finished) == 1 for finished in seeds.values()):
        return f", of seed {numbers}", ""
    return f", mean ± sample standard deviation over seeds {numbers}", ", mean over the seeds that do"


def budget_lines(budgets: Mapping[str, Budget]) -> list[str]:
    """What most methods spend, what the others do, and a warning of each that is far from it."""
    if not budgets:
        return []
    examples = {method: budget.examples for method, budget in budgets.items()}
    said = _majority({method: si(number) for method, number in examples.items()})
    lines = [f"examples passed forward and backward in a run, by the plan: {said}"]
    compute = ", ".join(f"{method} {si(budget.training_macs)}" for method, budget in budgets.items())
    lines.append(f"compute of a whole run, forward MACs x examples, by the plan: {compute}")
    usual, whose = _usual(examples)
    return lines + [
        f"warning: {method} trains on {number / usual:.2f} times the examples of {whose}: no equal budget"
        for method, number in examples.items()
        if abs(number - usual) > TOLERANCE * usual
    ]


def _usual(examples: Mapping[str, float]) -> tuple[float, str]:
    """The most common number, the smallest of those as common, and whose it is. Alike is what is printed alike."""
    shared = Counter(map(si, examples.values()))
    usual = min(examples.values(), key=lambda number: (-shared[si(number)], number))
    owners = [method for method, number in examples.items() if si(number) == si(usual)]
    return usual, "most methods" if 2 * len(owners) > len(examples) else " and ".join(owners)


def difference_lines(configs: Mapping[str, Config]) -> list[str]:
    """How many rounds, then a line for each setting that all methods have and not all have alike, their own options
    left out."""
    if not configs:
        return []
    plain = {method: dict(_leaves(config.to_dict())) for method, config in configs.items()}
    shared = [key for key in next(iter(plain.values())) if all(key in other for other in plain.values())]
    lines = [f"rounds: {_majority({method: str(config.rounds) for method, config in configs.items()})}"]
    for key in shared:
        values = {method: yaml_text.flow(settings[key]) for method, settings in plain.items()}
        if len(set(values.values())) > 1:
            lines.append(f"not alike: {key} is {_majority(values)}")
    return lines


def _leaves(plain: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for key, value in plain.items():
        if not path and key in _NOT_COMPARED:
            continue
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, key))
        else:
            yield words.dotted((*path, key)), value


def _majority(values: Mapping[str, str]) -> str:
    """`0.5; hermes, lgfedavg 0.1`: what most have, then who has something else."""
    (common, _), *others = Counter(values.values()).most_common()
    named = [f"{', '.join(name for name, own in values.items() if own == value)} {value}" for value, _ in others]
    return "; ".join([common, *named])
