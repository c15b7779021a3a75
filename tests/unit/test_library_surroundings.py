"""What a run of a program leaves in its process: nothing, however it ends; and an interrupt that ends the run only."""

import os
import random
import signal
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from golden_file import Told
from small_runs import SMALL, finished, undisturbed

import fedmpi
from fedmpi.check.bits import difference
from fedmpi.config.load import load

FEDAVG = ("method.name=fedavg", "evaluation.bn=restat")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class Interrupts:
    """An observer: somebody presses Ctrl-C when round 2 is saved."""

    def round_done(self, record: dict[str, Any]) -> None:
        if record["round"] == 2:
            signal.raise_signal(signal.SIGINT)


def config(*words: str) -> fedmpi.Config:
    return load(None, [*SMALL, *FEDAVG, *words])


def state() -> dict[str, Any]:
    """All that is global, as far as it can be read and compared."""
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return {
        "signals": [signal.getsignal(number) for number in SIGNALS],
        "environment": dict(os.environ),
        "arguments": (sys.argv[:], sys.path[:], os.getcwd()),
        "warnings": (warnings.filters[:], warnings.showwarning),
        "streams": (sys.stdout, sys.stderr, sys.excepthook),
        "threads": torch.get_num_threads(),
        "determinism": (torch.get_deterministic_debug_mode(), torch.utils.deterministic.fill_uninitialized_memory),
        "precision": (torch.get_float32_matmul_precision(), cuda.allow_tf32, cudnn.allow_tf32, cudnn.benchmark),
        "newer precision": [getattr(part, "fp32_precision", None) for part in (cuda, torch.backends.mkldnn)],
        "defaults": (torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "generators": (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()),
    }


@contextmanager
def settings_of_a_notebook() -> Iterator[None]:
    """Settings that would change results if they held in a run."""
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    handler = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    torch.set_num_threads(2)
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(before[0])
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision(before[1])
        signal.signal(signal.SIGUSR1, handler)


def test_a_run_leaves_everything_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it returns, fails in a round, or is refused; and other settings change no bit of it."""
    expected = undisturbed(tmp_path, *FEDAVG, "rounds=2")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    torch.set_deterministic_debug_mode(0)
    torch.set_num_threads(1)
    diverges = config("train.lr=1e9", "train.schedule.milestones=[]")
    with settings_of_a_notebook():
        before = state()
        run = fedmpi.run(config("rounds=2"), tmp_path / "run", progress=False)
        assert state() == before
        with pytest.raises(fedmpi.RoundError, match="round 1, client .*: .* diverged: "):
            fedmpi.run(diverges, tmp_path / "diverges", progress=False)
        assert state() == before
        with pytest.raises(fedmpi.UserError):
            fedmpi.run(config(), tmp_path / "run", progress=False)
        assert state() == before
        run.net()
        assert state() == before
    assert difference(finished(run.path), expected) == ""


def test_a_run_that_diverged_tells_a_call_that_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], told: Told
) -> None:
    """In the exception's text, with round, client, stage and cause: from the beginning where nothing is saved, else in
    a new run after what is.
    """
    plain = config(f"output.dir={tmp_path / 'runs'}")
    high = config(f"output.dir={tmp_path / 'runs'}", "train.lr=30", "train.schedule.milestones=[]")
    healthy = fedmpi.run(plain, tmp_path / "healthy", progress=False)
    for name, begins in (("first", {}), ("second", {"init_from": f"{healthy.path}@2"})):
        with pytest.raises(fedmpi.RoundError) as caught:
            fedmpi.run(high, tmp_path / name, progress=False, **begins)
        told(str(caught.value), r"client \d")
        again = eval(str(caught.value)[str(caught.value).index("fedmpi.run(") :], {"fedmpi": fedmpi})
        assert again.is_finished and again.config.train.lr == 0.1
    assert capsys.readouterr().err == ""


def test_an_interrupt_ends_the_run_and_not_the_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], told: Told
) -> None:
    """What is saved is said, with the call that continues: to the bits of a run that nobody has disturbed."""
    watched = config(f"output.observers=[{__name__}:Interrupts]")
    before = state()
    with pytest.raises(KeyboardInterrupt) as caught:
        fedmpi.run(watched, tmp_path / "run", progress=False)
    assert state() == before and isinstance(caught.value, fedmpi.Interrupted)
    told(str(caught.value))
    assert f"run_dir='{tmp_path / 'run'}'" in str(caught.value)
    assert fedmpi.open_run(tmp_path / "run").state == "interrupted"
    run = fedmpi.run(config(), run_dir=tmp_path / "run", resume=True, progress=False)
    assert difference(finished(run.path), undisturbed(tmp_path, *FEDAVG)) == ""


def test_a_run_in_another_thread(tmp_path: Path) -> None:
    """Where Python lets nobody set a signal handler."""
    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(fedmpi.run, config("rounds=1"), tmp_path / "run", progress=False).result()
    assert run.is_finished
