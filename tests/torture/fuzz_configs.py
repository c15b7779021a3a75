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
import faulthandler
import io
import itertools
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from torch import nn

from fedmpi import costs, errors
from fedmpi.command.manners import Parser, run_command
from fedmpi.config.load import MAX_PROBLEMS
from fedmpi.main import main as command
from fedmpi.studies.arguments import number

from . import config_mutations, findable, print_groups, program

# Of one core, not of the clock: this machine may have other things to do.
LIMIT_S = 60.0
LIMIT_WALL_S = 900.0
LIMIT_BYTES = 2**30
LIMIT_COMMAND_S = 300.0
COMMANDS = 20
# A minute or so of a core.
MOST_MACS = 2e11
# Where it is, and what is wrong there; a control character is four or more when it is escaped.
MAX_LINE = 4 * errors.MAX_LINE
# Beyond what any formula of ours can give from numbers within their bounds.
ABSURD = 1e40


@dataclass(frozen=True)
class Outcome:
    """What became of a case: `refused`, `planned`, or what was wrong; and what it took."""

    number: int
    kind: str
    verdict: str
    seconds: float
    megabytes: float
    detail: str = ""

    @property
    def is_failure(self) -> bool:
        return self.verdict not in ("refused", "planned", "helped")


class TooSlow(BaseException):
    """Not an Exception: nothing may take it for something else."""


def judge(
    words: Sequence[str], run: Callable[[Sequence[str]], int] = command, environment: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """(verdict, detail) of the command with `words` in this process; the detail is what it said."""
    out, err, told = io.StringIO(), io.StringIO(), warnings.catch_warnings(record=True)
    heard = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    try:
        with mock.patch.dict(os.environ, environment or {}), heard[0], heard[1], told as caught:
            warnings.simplefilter("always")
            code = run(words)
    except SystemExit as error:  # argparse's own --help and --version
        return ("helped", "") if error.code in (0, None) and not err.getvalue() else ("exit", str(error.code))
    except TooSlow:
        return "slow", "".join(traceback.format_exc().splitlines(keepends=True)[-9:])
    except BaseException:  # noqa: BLE001 - whatever it is, it is what we are looking for
        return "traceback", traceback.format_exc(limit=-6)
    err.writelines(str(warning.message) for warning in caught)
    if code == 2:
        wrong = wrong_with_refusal(out.getvalue(), err.getvalue())
    elif code == 0:
        wrong = f"stderr: {err.getvalue()}" if err.getvalue() else wrong_with_plan(out.getvalue())
    else:
        wrong = f"exit code {code}"
    if wrong:
        return "wrong", wrong
    return ("refused", err.getvalue()) if code == 2 else ("planned", out.getvalue())


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


# One process that judges many cases, in bounds.


def work(first: int, stop: int, seed: int) -> None:
    """A line of JSON before each case and after it, so that whoever reads knows which one ended the process."""
    command(["--plan=json"])  # loads torch
    print(flush=True)
    limit_memory(LIMIT_BYTES)
    signal.signal(signal.SIGPROF, _too_slow)
    with quick_plans():
        for number in range(first, stop):
            print(json.dumps(asdict(one(number, seed))), flush=True)


def one(number: int, seed: int) -> Outcome:
    mutation = config_mutations.mutate(number, seed)
    with tempfile.TemporaryDirectory() as folder:
        words = mutation.write(Path(folder))
        before, start = reset_peak(), time.process_time()
        faulthandler.dump_traceback_later(LIMIT_WALL_S, exit=True)
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        try:
            verdict, detail = judge(["--plan=json", *words], environment=mutation.environment)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            faulthandler.cancel_dump_traceback_later()
        seconds, taken = time.process_time() - start, peak() - before
    detail = detail if verdict not in ("refused", "planned") else ""
    return Outcome(number, mutation.kind, verdict, seconds, taken / 1e6, detail)


def _too_slow(number: int, frame: object) -> NoReturn:
    raise TooSlow


def limit_memory(more: int) -> None:
    """From now on this process may map `more` bytes, and not one beyond."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + more, now + more))


def reset_peak() -> int:
    """Sets the process's peak back to what it holds now, in bytes, and gives that."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def gather(first: int, stop: int, seed: int) -> Iterator[Outcome]:
    """All cases of a range in a process beside this one; in another one after a case that ends it."""
    while first < stop:
        words = [*program("fuzz_configs"), "--work", str(first), str(stop), "--seed", str(seed)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(words, **pipes, text=True, env=dict(os.environ) | findable()) as process:
            assert process.stdout is not None and process.stderr is not None
            for line in process.stdout:
                if line.startswith('{"number"'):
                    outcome = Outcome(**json.loads(line))
                    first = outcome.number + 1
                    yield outcome
            errors = process.stderr.read()
        if first < stop:
            yield Outcome(first, "?", "died", 0.0, 0.0, errors[-2000:])
            first += 1


# Real commands: under mpirun, and with a round that is really trained.


def again(count: int, seed: int, ranks: int, *, train: bool) -> Iterator[Outcome]:
    """`count` cases with small nets as commands: any on `ranks` ranks, or those that can be planned, for a round."""
    done = number = 0
    while done < count:
        mutation = config_mutations.mutate(number, seed, is_small)
        with tempfile.TemporaryDirectory() as folder:
            words = [*mutation.write(Path(folder)), *(["rounds=1", "train.local_epochs=1"] if train else [])]
            verdict, said = judge(["--plan=json", *words])
            if not train or (verdict == "planned" and json.loads(said)["training_macs_per_run"] < MOST_MACS):
                mode = [f"--run-dir={folder}/run"] if train or verdict == "refused" else ["--plan=json"]
                yield command_outcome(mutation, verdict, [*mode, *words], ranks, folder)
                done += 1
        number += 1


def is_small(name: str) -> bool:
    """The configs on digits, which train in seconds."""
    return name.endswith("_digits.yaml")


def command_outcome(
    mutation: config_mutations.Mutation, expected: str, words: list[str], ranks: int, folder: str
) -> Outcome:
    """What the real command did: with code 2 one answer, as expected or out of the data; else it went to its end."""
    launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    start = time.monotonic()
    command = [*launcher, sys.executable, "-m", "fedmpi.main", *words]
    how = {"text": True, "errors": "replace", "timeout": LIMIT_COMMAND_S, "cwd": folder, "check": False}
    try:
        result = subprocess.run(command, capture_output=True, **how)
    except subprocess.TimeoutExpired:
        return Outcome(mutation.number, "command", "slow", LIMIT_COMMAND_S, 0.0, " ".join(words)[:2000])
    is_right = result.returncode in (0, 2) and "Traceback" not in result.stderr
    is_right = is_right and (expected != "refused" or result.returncode == 2)
    verdict = ("planned" if result.returncode == 0 else "refused") if is_right else "wrong"
    said = "" if is_right else f"{' '.join(words)[:2000]}\ncode {result.returncode}\n{result.stderr[-2000:]}"
    return Outcome(mutation.number, "command", verdict, time.monotonic() - start, 0.0, said)


# The report.


def print_table(outcomes: Sequence[Outcome]) -> None:
    """A row for each kind of mutation."""
    columns: dict[str, Callable[[Sequence[Outcome]], object]] = {
        "cases": len,
        "refused": lambda those: sum(one.verdict == "refused" for one in those),
        "planned": lambda those: sum(one.verdict == "planned" for one in those),
        "failed": lambda those: sum(one.is_failure for one in those),
        "worst s": lambda those: f"{max(one.seconds for one in those):.2f}",
        "worst MB": lambda those: f"{max(one.megabytes for one in those):.0f}",
    }
    print_groups("kind", outcomes, lambda one: one.kind.split(":")[0], columns)


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(lambda: _fuzz(_arguments(argv)))


def _fuzz(given: argparse.Namespace) -> int:
    if given.work:
        work(*given.work, given.seed)
        return 0
    outcomes: list[Outcome] = []
    mutated = gather(given.first, given.first + given.count, given.seed)
    commands = again(given.ranks and COMMANDS, given.seed, given.ranks, train=False)
    trained = again(given.train, given.seed, 1, train=True)
    for outcome in itertools.chain(mutated, commands, trained):
        outcomes.append(outcome)
        if outcome.is_failure:
            of = f"case {outcome.number} of seed {given.seed} ({outcome.kind})"
            print(f"{outcome.verdict}: {of}\n{outcome.detail}", flush=True)
    print_table(outcomes)
    return int(any(outcome.is_failure for outcome in outcomes))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("python -m tests.torture.fuzz_configs", __doc__)
    parser.add_argument("--count", type=number(int, 1), default=2000, help="mutations")
    parser.add_argument("--seed", type=number(int, 0), default=0, help="of the mutations")
    parser.add_argument("--first", type=number(int, 0), default=0, help="number of the first one")
    parser.add_argument("--ranks", type=number(int, 0), default=0, help=f"of {COMMANDS} real commands; 0 starts none")
    parser.add_argument("--train", type=number(int, 0), default=0, help="how many plans are really run, for a round")
    parser.add_argument("--work", type=int, nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
