"""Whatever a config or the command line holds: one line a problem and exit code 2, or a plan that works.

    python -m tests.torture.fuzz_configs [--count 2000] [--seed 0] [--first 0] [--ranks 2] [--train 10]

makes `--count` mutations of the shipped configs (`config_mutations.py`), runs the whole command with
`--plan=json` on each in a process that may take 1 GB more than it has after loading torch, and
prints a table of outcomes by kind of mutation, the longest time (of one core) and the most memory,
and each failure with its number. A failure is a traceback or any other output, an answer that is not
one printable line a problem and says where, a plan with a number that is negative, not finite or
absurd, more than 1 GB, or more than 60 s. `--ranks N` also starts 20 real commands under mpirun,
`--train N` really trains a round of some that can be planned. Exit code 1 if anything failed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import torch
from torch import nn

from fedmpi import costs, errors
from fedmpi.command.manners import Parser, run_command
from fedmpi.config.load import MAX_PROBLEMS
from fedmpi.main import main as command
from fedmpi.mpi.mpirun import start_words
from fedmpi.studies.arguments import number

from . import bounded, config_mutations, print_groups, processes
from .bounded import Outcome
from .config_mutations import Mutation

MOST_S, MOST_BYTES = 60, 2**30
LIMIT_COMMAND_S = 300.0
COMMANDS = 20
# A minute or so of a core.
MOST_MACS = 2e11
# Where it is, and what is wrong there; a control character is four or more when it is escaped.
MAX_LINE = 4 * errors.MAX_LINE
# Beyond what any formula of ours can give from numbers within their bounds.
ABSURD = 1e40
GOOD = ("refused", "planned", "helped")


def judge(
    words: Sequence[str], run: Callable[[Sequence[str]], int] = command, environment: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """`refused`, `planned`, `helped` or `wrong`: the command with `words` in this process; and what it said."""
    out, err, told = io.StringIO(), io.StringIO(), warnings.catch_warnings(record=True)
    heard = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    try:
        with mock.patch.dict(os.environ, environment or {}), heard[0], heard[1], told as caught:
            warnings.simplefilter("always")
            code = run(words)
    except SystemExit as error:  # argparse's own --help and --version
        return ("helped", "") if error.code in (0, None) and not err.getvalue() else ("wrong", f"exit {error.code}")
    err.writelines(str(warning.message) for warning in caught)
    return verdict_on(code, out.getvalue(), err.getvalue())


def verdict_on(code: int, out: str, err: str) -> tuple[str, str]:
    """(verdict, detail) of what a command has said."""
    if code == 2:
        wrong = wrong_with_refusal(out, err)
    elif code == 0:
        wrong = f"stderr: {err}" if err else wrong_with_plan(out)
    else:
        wrong = f"exit code {code}"
    if wrong:
        return "wrong", wrong
    return ("refused", err) if code == 2 else ("planned", out)


def wrong_with_refusal(out: str, err: str) -> str:
    """Why this is not the answer to a mistake: "" if it is."""
    lines = err.removesuffix("\n").split("\n")
    problems = lines[1:] if len(lines) > 1 else lines
    if out:
        return f"stdout: {out[:200]}"
    if not all(lines) or not all(line.isprintable() for line in lines):
        return f"a line is empty or not printable: {err[:500]!r}"
    if max(map(len, lines)) > MAX_LINE or len(lines) > MAX_PROBLEMS + 2:
        return f"{len(lines)} lines of up to {max(map(len, lines))} characters"
    if ": " not in lines[0] or any("Traceback" in line for line in lines):
        return f"does not say where: {lines[0]}"
    indented = all(line.startswith("  ") for line in problems)
    return "" if len(lines) == 1 or indented else f"not a line a problem: {err[:500]}"


def wrong_with_plan(out: str) -> str:
    """Why this is no plan that works: "" if it is."""

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{word} in the plan")

    try:
        plan = json.loads(out, parse_constant=refuse)
    except ValueError as error:
        return f"no JSON: {error}: {out[:200]}"
    bad = [f"{key}: {value}" for key, value in _numbers(plan, "") if not (math.isfinite(value) and 0 <= value < ABSURD)]
    return f"absurd: {', '.join(bad)}" if bad or not plan["tiers"] else ""


def _numbers(tree: Any, key: str) -> Iterator[tuple[str, float]]:
    if isinstance(tree, (dict, list)):
        for name, item in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _numbers(item, f"{key}.{name}")
    elif isinstance(tree, (int, float)) and not isinstance(tree, bool):
        yield key, tree


@contextlib.contextmanager
def quick_plans() -> Iterator[None]:
    """Nets of the same modules cost the same, so they are measured once; and values without memory need no drawing."""
    measure, measured = costs.measure, {}

    def once(net: nn.Module, example_shape: tuple[int, ...]) -> costs.Costs:
        key = (repr(net), example_shape)
        if key not in measured:
            if len(measured) > 500:
                measured.clear()
            measured[key] = measure(net, example_shape)
        return measured[key]

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(costs, "measure", once))
        for name in ("kaiming_normal_", "kaiming_uniform_", "uniform_", "normal_", "trunc_normal_"):
            stack.enter_context(mock.patch.object(nn.init, name, lambda weight, *_, **__: weight))
        yield


def mutated(numbers: Sequence[int], seed: int) -> Iterator[Outcome]:
    """Of each mutation, in a process beside this one."""

    def draw(number: int) -> tuple[str, bounded.Attempt]:
        mutation = config_mutations.mutate(number, seed)
        return mutation.kind, lambda: attempt(mutation)

    def attempt(mutation: Mutation) -> tuple[str, str]:
        with tempfile.TemporaryDirectory() as folder:
            verdict, said = judge(["--plan=json", *mutation.write(Path(folder))], environment=mutation.environment)
        return verdict, "" if verdict in GOOD else said

    torch.set_num_threads(1)
    judge(["--plan=json"])  # loads what every case needs
    with quick_plans():
        yield from bounded.outcomes(numbers, draw, most_s=MOST_S, most_bytes=MOST_BYTES)


# Real commands: under mpirun, and with a round that is really trained.


def commanded(count: int, seed: int, ranks: int, *, trains: bool) -> Iterator[Outcome]:
    """Of `count` cases with small nets: any on `ranks` ranks, or what can be planned, for a round."""
    tried = (command_outcome(number, seed, ranks, trains=trains) for number in itertools.count())
    yield from itertools.islice(filter(None, tried), count)


def command_outcome(number: int, seed: int, ranks: int, *, trains: bool = False) -> Outcome | None:
    """What the real command does with a case: with code 2 one answer, the expected one; else it runs to its end.

    A mistake is told before MPI starts, so it runs without --plan. None for a case that cannot be trained in a minute.
    """
    mutation = config_mutations.mutate(number, seed, _is_small)
    with tempfile.TemporaryDirectory() as folder:
        words = [*mutation.write(Path(folder)), *(["rounds=1", "train.local_epochs=1"] if trains else [])]
        expected, said = judge(["--plan=json", *words])
        if trains and (expected != "planned" or json.loads(said)["training_macs_per_run"] > MOST_MACS):
            return None
        plans = expected != "refused" and not trains
        mode = "--plan=json" if plans else f"--run-dir={folder}/run"
        full = [*start_words(ranks), sys.executable, "-m", "fedmpi.main", mode, *words]
        how = {"cwd": folder, "env": processes.environment(), "text": True, "errors": "replace"}
        done = subprocess.run(full, capture_output=True, timeout=LIMIT_COMMAND_S, check=False, **how)
    verdict, detail = expected, ""
    if expected == "refused":
        is_right = done.returncode == 2 and processes.only_starts(done.stdout) and done.stderr.count(said) == 1
    elif trains:  # data may be refused that are read only now
        is_right = done.returncode in (0, 2)
    else:
        is_right = verdict_on(done.returncode, done.stdout, done.stderr)[0] == expected
        is_right = is_right and (expected == "helped" or json.loads(done.stdout)["ranks"] == ranks)
    if not is_right or "Traceback" in done.stderr:
        verdict, detail = "wrong", f"{' '.join(words)[:2000]}\ncode {done.returncode}\n{done.stderr[-2000:]}"
    return Outcome(number, "command", verdict, detail)


def _is_small(name: str) -> bool:
    """The configs on digits, which train in seconds."""
    return name.endswith("_digits.yaml")


def print_table(outcomes: Sequence[Outcome]) -> None:
    """A row for each kind of mutation."""
    columns: dict[str, Callable[[Sequence[Outcome]], object]] = {
        "cases": len,
        "refused": lambda those: sum(one.verdict == "refused" for one in those),
        "planned": lambda those: sum(one.verdict == "planned" for one in those),
        "failed": lambda those: sum(one.verdict not in GOOD for one in those),
        "worst s": lambda those: f"{max(one.seconds for one in those):.2f}",
        "worst MB": lambda those: f"{max(one.megabytes for one in those):.0f}",
    }
    print_groups("kind", outcomes, lambda one: one.kind.split(":")[0], columns)


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(lambda: _fuzz(_arguments(argv)))


def _fuzz(given: argparse.Namespace) -> int:
    outcomes: list[Outcome] = []
    cases = mutated(range(given.first, given.first + given.count), given.seed)
    commands = commanded(given.ranks and COMMANDS, given.seed, given.ranks, trains=False)
    trained = commanded(given.train, given.seed, 1, trains=True)
    for outcome in itertools.chain(cases, commands, trained):
        outcomes.append(outcome)
        if outcome.verdict not in GOOD:
            of = f"case {outcome.number} of seed {given.seed} ({outcome.kind})"
            print(f"{outcome.verdict}: {of}\n{outcome.detail}", flush=True)
    print_table(outcomes)
    return int(any(outcome.verdict not in GOOD for outcome in outcomes))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("python -m tests.torture.fuzz_configs", __doc__)
    parser.add_argument("--count", type=number(int, 1), default=2000, help="mutations")
    parser.add_argument("--seed", type=number(int, 0), default=0, help="of the mutations")
    parser.add_argument("--first", type=number(int, 0), default=0, help="number of the first one")
    parser.add_argument("--ranks", type=number(int, 0), default=0, help=f"of {COMMANDS} real commands; 0 starts none")
    parser.add_argument("--train", type=number(int, 0), default=0, help="how many plans are really run, for a round")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
