"""The programs of `jobs/bench`: each runs once in a tiny setting, and its numbers by hand."""

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from fast import fast
from small_runs import small_setup

BENCH = Path(__file__).parents[2] / "jobs" / "bench"
SHORT = "data.num_train=80 data.num_test=16 train.local_epochs=1 train.batch_size=8 --pairs 1"
FEDHM = ("method.name=fedhm", "method.rank_ratio=[1,0.5]", "model.width=0.25", "model.blocks=[1,1,1]")
PROGRAMS = {
    "overhead": (f"--case small --ranks 2 {SHORT}", "small CNN (8x8 inputs), FedAvg: round / bare loop = "),
    "scaling": ("--ranks 2 --upload-mb 1 --pairs 1 clients.per_round=7", "1 MB, 2, gather"),
    "memory": (f"--case small --ranks 2 {SHORT}", "all 2 ranks / as many bare loops = "),
    "memory --frozen-mb 4": ("--ranks 2 --pairs 1", "a round moves 0."),
    "startup": ("--ranks 1 --pairs 1", "to the end of round 1"),
    "parts aggregate": (f"--case small-fedhm {SHORT}", "lift and add "),
    "parts steps": (f"--case small-fedhm {SHORT} --precision fp32,bf16", "bare loop, bf16"),
}
MISTAKES = {"overhead train.lr=fast": "train.lr", "overhead --case smal": "no 'smal'", "parts": "aggregate, steps"}


def run(words: str) -> subprocess.CompletedProcess[str]:
    program, *more = words.split()
    command = [sys.executable, str(BENCH / f"{program}.py"), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=BENCH.parents[1] / "configs")


@pytest.mark.parametrize("name", fast(of=PROGRAMS, slow=("overhead", "scaling", "parts steps")))
def test_it_prints_its_table(name: str) -> None:
    words, expected = PROGRAMS[name]
    done = run(f"{name} {words}")
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_said_without_a_traceback(words: str) -> None:
    done = run(words)
    assert (done.returncode, done.stdout.partition("\n")[2]) == (2, "")
    assert MISTAKES[words] in done.stderr and "Traceback" not in done.stderr


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a program of the folder."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


def test_measurements_are_taken_in_turn(program: Callable[[str], Any]) -> None:
    """Of three turns the first warms up; 4 to 2 and 9 to 3 are ratios of 2 and 3."""
    measuring, log = program("measuring"), list[str]()
    values = {"a": iter([100.0, 4.0, 9.0]), "b": iter([1.0, 2.0, 3.0])}

    def take(name: str) -> Callable[[], float]:
        return lambda: log.append(name) or next(values[name])

    found = measuring.in_turn({"a": take("a"), "b": take("b")}, 2)
    assert log == [*"ababab"] and found == {"a": [4.0, 9.0], "b": [2.0, 3.0]}
    assert measuring.spread(measuring.ratios(found["a"], found["b"])) == ["2.50", "2.00 - 3.00"]
    assert measuring.ratio_text(found["a"], found["b"]) == "2.500 (pairs 2.000 to 3.000)"


def test_a_line_of_exchanges_by_hand(program: Callable[[str], Any]) -> None:
    """Rounds of 4 and 2 s beside 2 and 0.5 s; rank 0 works 1 and 3 s, the busiest worker 2 and 1 s; four clients."""
    found = {
        "seconds": {"auto": [4.0, 2.0], "bare": [2.0, 0.5]},
        "busy_s": {"auto": [[1.0, 2.0, 0.5], [3.0, 0.5, 1.0]]},
        "moved": {"auto": {"exchange": "reduce", "wire_messages": 8, "wire_bytes": 2_000_000}},
        "clients": 4,
    }
    assert program("scaling").cells("auto", found) == [
        *("auto: reduce", "3.000 s", "2.000 - 4.000 s", "750.0 ms", "2.000 s", "1.500 s"),
        *("8", "2 MB", "1.250 s", "3.00", "2.00 - 4.00"),
    ]


def test_ratios_of_steps_by_hand(program: Callable[[str], Any]) -> None:
    """Turn by turn: the dense tier takes 4 and 2 s, the tier 2 and 0.5 s, the bare loop 1 and 3 s."""
    rows = [
        {"tier": "1", "precision": "fp32", "macs": 8.0, "seconds": [4.0, 2.0]},
        {"tier": "0.5", "precision": "fp32", "macs": 2.0, "seconds": [2.0, 0.5]},
        {"tier": "bare loop", "precision": "fp32", "macs": 8.0, "seconds": [1.0, 3.0]},
    ]
    assert program("parts").step_lines(rows)[1] == [
        *("0.5", "fp32", "1250 ms", "500 - 2000 ms"),
        *("3.00", "2.00 - 4.00", "3.25", "0.50 - 6.00", "4.00"),
    ]


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("fp16", torch.float16)])
def test_the_bare_loop_has_the_precision_of_the_run(
    program: Callable[[str], Any], tmp_path: Path, precision: str, dtype: torch.dtype
) -> None:
    bare = program("measuring").BareLoop(small_setup(tmp_path, *FEDHM, f"train.precision={precision}"), [0])
    found: list[torch.dtype] = []
    conv = next(part for part in bare._nets[0].modules() if isinstance(part, torch.nn.Conv2d))
    conv.register_forward_hook(lambda part, inputs, outputs: found.append(outputs.dtype))
    bare.steps(0, 1)
    assert found == [dtype]
