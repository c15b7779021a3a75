"""The table of `jobs/compare.py`: its rows, and as people and programs read it; the caption says what was equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TextIO

from fedmpi.config import explain, yaml_text
from fedmpi.config.schema import Config
from fedmpi.config.yaml_text import leaves
from fedmpi.report import ending, table_text
from fedmpi.report.records import CLIENTS, Record, net_scores, rounds_done
from fedmpi.report.terminal import printable, wrapped
from fedmpi.store.units import percent, si, size
from fedmpi.studies.runs import Run, accuracy_of, mean_std, to_target

# Efforts that differ from what most methods spend by more than this share are warned of.
TOLERANCE = 0.1
_HEADS = ("method", "tier", "accuracy", "params", "MACs", "bytes to target", "compute to target", "rounds to target")
_SHORT_HEADS = ("method", "tier", "accuracy %", "params", "MACs", "bytes", "compute", "rounds")
_NUM_LEFT = 2
_NOT_COMPARED = ("seed", "rounds", "method", "mpi", "output")


@dataclass(frozen=True)
class Effort:
    """What the plan says of one run of a method: its compute, and the mean net of its clients."""

    examples: float
    """Passed forward and backward by all clients in all rounds."""
    training_macs: float
    mean_params: float
    mean_macs: float


@dataclass(frozen=True)
class Row:
    """A line of the table, exact: a net of a method, all its clients' own nets, or a run that is not finished.

    Means and sample standard deviations are over the finished seeds (a single one has no deviation); those of what it
    takes to reach the target over the `seeds_at_target` that do.
    """

    method: str
    tier: str
    status: str = ""
    """Empty, `untested`, or why there is no result."""
    seeds: int = 0
    accuracy: float | None = None
    accuracy_std: float | None = None
    best_accuracy: float | None = None
    best_accuracy_std: float | None = None
    clients_std: float | None = None
    """Of the accuracy over clients, in the last round."""
    clients_worst_decile: float | None = None
    params: float | None = None
    macs: float | None = None
    seeds_at_target: int = 0
    bytes_to_target: float | None = None
    macs_to_target: float | None = None
    rounds_to_target: float | None = None

    def cells(self) -> tuple[str, ...]:
        of = f" ({self.seeds_at_target} of {self.seeds})" if 0 < self.seeds_at_target < self.seeds else ""
        rounds = "-" if self.rounds_to_target is None else f"{self.rounds_to_target:.4g}"
        to_target = [size(self.bytes_to_target), si(self.macs_to_target), rounds]
        accuracy = percent(self.accuracy)
        if self.accuracy is not None and self.accuracy_std is not None:
            accuracy = f"{100 * self.accuracy:.2f} ± {percent(self.accuracy_std)}"
        to_target = [cell if cell == "-" else cell + of for cell in to_target]
        return self.method, self.tier, self.status or accuracy, si(self.params), si(self.macs), *to_target

    def short_cells(self) -> tuple[str, ...]:
        """The same under `_SHORT_HEADS`; how many seeds reach the target is said once."""
        method, tier, accuracy, params, macs, moved, compute, rounds = self.cells()
        shown = accuracy.removesuffix(" %"), params, macs, moved.partition(" (")[0], compute.partition(" (")[0]
        return method, tier, *shown, rounds


def rows_of(
    runs: Sequence[Run], target: float, effort: Effort | None, *, failed: Collection[Run] = ()
) -> Iterator[Row]:
    """The rows of one method, `effort` None if no run is finished; the other runs have failed or are unfinished."""
    done = [run for run in runs if run.is_finished()]
    method = next((run.method for run in runs if run.has_begun()), runs[0].name)
    if done and effort is not None:
        histories = [run.records for run in done]
        last = histories[0][-1]
        has_clients = CLIENTS in last
        for net in done[0].nets:
            row = Row(method, net["name"], params=net["params"], macs=net["macs"])
            if net["name"] in net_scores(last):
                yield _scored(row, histories, target)
            elif not has_clients:
                yield replace(row, status="untested", seeds=len(done))
        if has_clients:
            row = Row(method, CLIENTS, params=effort.mean_params, macs=effort.mean_macs)
            yield _scored(row, histories, target)
    for run in runs:
        if run not in done:
            yield Row(method, f"seed {run.seed}", _how_it_ended(run, has_failed=run in failed))


def _how_it_ended(run: Run, *, has_failed: bool) -> str:
    """`diverged in round 3, client 17`, or `interrupted after 2 of 5 rounds`: of a run that is not finished."""
    if not run.has_begun():
        return f"{'failed' if has_failed else 'unfinished'} before it began"
    records = run.records
    done, ended = rounds_done(records), ending.ending(run.folder, records)
    if ended.cause.startswith("round "):
        return ended.briefly().partition(", stage ")[0]
    state = {ending.RUNNING: "still running", ending.SILENT: "no sign of life"}.get(ended.state, ended.state)
    state = "unfinished" if done == run.rounds else state  # all but its report
    return f"{state} after {done} of {run.rounds} rounds{ending.unless_all_saved(done, ended.saved)}"


def _scored(row: Row, histories: Sequence[Sequence[Record]], target: float) -> Row:
    tier = row.tier
    evaluations = [[accuracy_of(record, tier) for record in records] for records in histories]
    accuracies = [[accuracy for accuracy in of_run if accuracy is not None] for of_run in evaluations]
    last, last_std = mean_std([scores[-1] for scores in accuracies])
    best, best_std = mean_std([max(scores) for scores in accuracies])
    reached = [found for records in histories if (found := to_target(records, tier, target))]
    moved, macs, rounds = (mean_std(values)[0] for values in zip(*reached, strict=True)) if reached else (None,) * 3
    clients = [records[-1][CLIENTS] for records in histories] if tier == CLIENTS else []
    return replace(
        row,
        seeds=len(histories),
        accuracy=last,
        accuracy_std=last_std,
        best_accuracy=best,
        best_accuracy_std=best_std,
        clients_std=mean_std([scores["std"] for scores in clients])[0],
        clients_worst_decile=mean_std([scores["worst_decile"] for scores in clients])[0],
        seeds_at_target=len(reached),
        bytes_to_target=moved,
        macs_to_target=macs,
        rounds_to_target=rounds,
    )


def effort_of(config: Config) -> Effort:
    """What `--plan` says of this config."""
    from fedmpi.running.forecast import forecast

    plan = forecast(config, 1)
    clients = sum(tier.clients for tier in plan.tiers)
    return Effort(
        examples=sum(tier.client_rounds * tier.training_examples for tier in plan.tiers),
        training_macs=plan.training_macs_per_run,
        mean_params=sum(tier.clients * tier.params for tier in plan.tiers) / clients,
        mean_macs=sum(tier.clients * tier.macs for tier in plan.tiers) / clients,
    )


def print_table(rows: Sequence[Row], caption: Sequence[str], stream: TextIO) -> None:
    """For a terminal: shorter cells than `markdown` has, and a line for each run without a result below the table."""
    lines = [row.short_cells() for row in rows if row.seeds]
    if lines:
        table_text.print_lines(_SHORT_HEADS, lines, _NUM_LEFT, stream)
    others = [f"{row.method}, {row.tier}: {row.status}" for row in rows if not row.seeds]
    print(*(printable(line, stream) for line in wrapped(*others, *caption)), sep="\n", file=stream, flush=True)


def markdown(rows: Sequence[Row], caption: Sequence[str], commands: Sequence[str]) -> str:
    lines = table_text.markdown_lines(_HEADS, [row.cells() for row in rows], _NUM_LEFT)
    notes = [f"- {line[0].upper()}{line[1:]}" for line in caption]
    head = ["# Methods compared", "", "The runs were made by", "", *(f"    {command}" for command in commands), ""]
    return "\n".join([*head, *lines, "", *notes, ""])


def comma_separated(rows: Sequence[Row]) -> str:
    return table_text.comma_separated([asdict(row) for row in rows])


def what_is_shown(
    rows: Sequence[Row], seeds: Mapping[str, Sequence[int]], target: float, scale: float, overrides: Sequence[str]
) -> list[str]:
    """What the columns of these rows mean, and what was changed for all methods. `seeds` are each method's finished
    ones; where each has one there is neither mean nor deviation.
    """
    lines = _legend(rows, seeds, target) if seeds else []
    lines += [f"all numbers of rounds are {scale:g} times those of the configs"] if scale != 1 else []
    return lines + ([f"set for all: {' '.join(overrides)}"] if overrides else [])


def _legend(rows: Sequence[Row], seeds: Mapping[str, Sequence[int]], target: float) -> list[str]:
    numbers = _majority({method: ", ".join(map(str, finished)) for method, finished in seeds.items()})
    has_one = all(len(finished) == 1 for finished in seeds.values())
    of_seeds = f", of seed {numbers}" if has_one else f", mean ± sample standard deviation over seeds {numbers}"
    over_seeds = "" if has_one else ", mean over the seeds that do"
    reached = f"until an evaluation first gives this row {100 * target:g} % or more{over_seeds}"
    spent = "bytes (down and up) and compute (forward MACs x examples x epochs) are those of all clients together"
    lines = [f"accuracy: after the last round{of_seeds}", f"bytes, compute and rounds to target: {reached}; {spent}"]
    if any(row.tier == CLIENTS for row in rows):
        lines.append(
            "clients: each one's own net on its own test data, mean over clients; params and MACs (a forward pass of "
            "one example) are means over the clients' tiers"
        )
    return lines


def effort_lines(efforts: Mapping[str, Effort]) -> list[str]:
    """What most methods spend, what the others do, and a warning of each that is far from it."""
    if not efforts:
        return []
    examples = {method: effort.examples for method, effort in efforts.items()}
    said = _majority({method: si(number) for method, number in examples.items()})
    compute = ", ".join(f"{method} {si(effort.training_macs)}" for method, effort in efforts.items())
    usual, whose = _usual(examples)
    return [
        f"examples passed forward and backward in a run, by the plan: {said}",
        f"compute of a whole run, forward MACs x examples, by the plan: {compute}",
    ] + [
        f"warning: {method} trains on {number / usual:.2f} times the examples of {whose}: no equal budget"
        for method, number in examples.items()
        if abs(number - usual) > TOLERANCE * usual
    ]


def _usual(examples: Mapping[str, float]) -> tuple[float, str]:
    """The mode of the printed numbers (of several, the smallest) and the methods that have it."""
    shared = Counter(map(si, examples.values()))
    usual = min(examples.values(), key=lambda number: (-shared[si(number)], number))
    owners = [method for method, number in examples.items() if si(number) == si(usual)]
    return usual, "most methods" if 2 * len(owners) > len(examples) else " and ".join(owners)


def spectrum_lines(histories: Mapping[str, Sequence[Sequence[Record]]]) -> list[str]:
    """The lines of each method that notes it, after the last round, means over seeds: by tier the energy of its
    factorized layers that a tier lacks; their effective rank, a mean over the layers, too; and by tier the predicted
    factor of that round. `histories` are the records of each method's finished runs."""
    lines = []
    for method, runs in histories.items():
        notes = [records[-1].get("method") or {} for records in runs]
        spectra = [note.get("spectrum") or {} for note in notes]
        if not all(spectrum.get("beyond") for spectrum in spectra):
            continue
        beyond = _means([spectrum["beyond"] for spectrum in spectra])
        lines.append(f"{method}: share of the energy of the factorized layers beyond the rank of tier {beyond}")
        ranks = [layer["effective_rank"] for spectrum in spectra for layer in (spectrum.get("layers") or {}).values()]
        if ranks:
            lines.append(f"{method}: effective rank of a factorized layer {sum(ranks) / len(ranks):.3g} on average")
        if all(note.get("band_factor") for note in notes):
            factors = _means([note["band_factor"] for note in notes])
            lines.append(f"{method}: predicted factor of the last round by tier {factors}")
    return lines


def _means(values: Sequence[Mapping[str, float]]) -> str:
    """By tier the mean over seeds, as text."""
    return ", ".join(f"{tier} {sum(one[tier] for one in values) / len(values):.2g}" for tier in values[0])


def difference_lines(configs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """How many rounds, then a line for each setting that all methods have and not all have alike, their own options
    left out. `configs` are plain values."""
    if not configs:
        return []
    shared = {
        method: {path: value for path, value in leaves(config) if path[0] not in _NOT_COMPARED}
        for method, config in configs.items()
    }
    lines = [f"rounds: {_majority({method: str(config['rounds']) for method, config in configs.items()})}"]
    for path in next(iter(shared.values())):
        values = {method: yaml_text.flow(settings[path]) for method, settings in shared.items() if path in settings}
        if len(values) == len(shared) and len(set(values.values())) > 1:
            lines.append(f"not alike: {explain.dotted(path)} is {_majority(values)}")
    return lines


def _majority(values: Mapping[str, str]) -> str:
    """`0.5; hermes, lgfedavg 0.1`: what most have, then the others, each with its methods."""
    (common, _), *others = Counter(values.values()).most_common()
    named = [f"{', '.join(name for name, own in values.items() if own == value)} {value}" for value, _ in others]
    return "; ".join([common, *named])
