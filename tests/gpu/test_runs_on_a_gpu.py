"""Whole runs on a real GPU: the same bits whatever the exchange, after a resume, and with replayed steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fast import fast
from method_cases import CASES
from small_runs import finished, one_round, run_all, small_config, small_setup, undisturbed

from fedmpi.check.bits import difference
from fedmpi.learning.local import LocalTrainer
from fedmpi.mpi.serial import SerialComm
from fedmpi.rounds.state import ServerState
from fedmpi.running import replaying

pytestmark = pytest.mark.gpu("runs on it, and CUDA graphs")

ON_IT = ("mpi.device=cuda", "mpi.server_device=cuda")
AUTO = "train.cuda_graph=auto"
# Batches of 4 of some 15 examples: whole ones, and a smaller one.
WORDS = ("rounds=2", "train.batch_size=4", *ON_IT)
OWN_STEPS = ("fjord", "perfedavg", "splitmix", "fdnnc")
DROPOUT = ("model.name=vgg16", "data.shape=[3,32,32]", "data.num_train=32", "model.width=0.0625", "method.name=fedavg")
SETTINGS: dict[str, tuple[str, ...]] = {
    "bf16": ("train.precision=bf16",),
    "fp16": ("train.precision=fp16", "train.loss_scale=16777216"),  # the first steps halve it
    "adamw": ("train.optimizer=adamw", "train.lr=0.001", "train.clip_norm=0.5"),
    "contiguous": ("train.memory_format=contiguous", "train.augment=false", "train.masked_loss=false"),
    "careful": ("train.on_divergence=upload_last_finite",),
    "vit": ("model.name=vit_small", "model.width=1", "model.embedding=12", "model.depth=1", "model.heads=2"),
}


@pytest.fixture(autouse=True)
def deterministic_cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command sets before CUDA starts."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fills with the number of steps of each training that could be replayed."""
    found: list[int] = []
    run = LocalTrainer.run

    def counted(trainer: LocalTrainer, *args: object, **kwargs: object) -> object:
        outcome = run(trainer, *args, **kwargs)
        found.extend([outcome.steps] * (trainer.replay is not None))
        return outcome

    monkeypatch.setattr(LocalTrainer, "run", counted)
    return found


@pytest.mark.parametrize("case", fast("fedavg", "fedhm", "hermes", "prism", "scaffold", "topk", of=CASES))
def test_every_method_keeps_its_bits(tmp_path: Path, case: str) -> None:
    """Two rounds by gather and, resumed, a third by reduce."""
    words = (*CASES[case], *WORDS, "evaluation.personal=on")
    expected = undisturbed(tmp_path, *words, "rounds=3", "mpi.exchange=gather")
    run_all(small_config(*words, "mpi.exchange=gather"), SerialComm(), tmp_path / "run")
    run_all(small_config(*words, "rounds=3", "mpi.exchange=reduce"), SerialComm(), tmp_path / "run", resume=True)
    assert difference(finished(tmp_path / "run"), expected) == ""


@pytest.mark.parametrize("case", fast("fedavg", "fedhm", "hermes", "prism", "fjord", "scaffold-gradient", of=CASES))
def test_replayed_steps_have_the_bits_of_computed_ones(tmp_path: Path, case: str, replays: list[int]) -> None:
    expected = undisturbed(tmp_path, *CASES[case], *WORDS)
    assert not replays
    run_all(small_config(*CASES[case], *WORDS, AUTO), SerialComm(), tmp_path / "run")
    assert difference(finished(tmp_path / "run"), expected) == ""
    assert bool(replays) == (not case.startswith(OWN_STEPS))


@pytest.mark.parametrize("name", SETTINGS)
def test_replayed_steps_under_other_settings(tmp_path: Path, name: str, replays: list[int]) -> None:
    words = ("method.name=fedavg", *WORDS, *SETTINGS[name])
    expected = undisturbed(tmp_path, *words)
    run_all(small_config(*words, AUTO), SerialComm(), tmp_path / "run")
    assert difference(finished(tmp_path / "run"), expected) == "" and replays


def test_a_net_with_dropout_is_not_replayed(tmp_path: Path, replays: list[int]) -> None:
    expected = undisturbed(tmp_path, *DROPOUT, *WORDS)
    run_all(small_config(*DROPOUT, *WORDS, AUTO), SerialComm(), tmp_path / "run")
    assert difference(finished(tmp_path / "run"), expected) == "" and not replays


def test_a_recording_that_fails_leaves_the_run_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replays: list[int]
) -> None:
    """A real one: within it the action asks the device for a number."""
    words = ("method.name=fedhm", *WORDS)
    expected = undisturbed(tmp_path, *words)
    record = replaying.CudaGraphs.__call__

    def asks(graphs: replaying.CudaGraphs, action: object) -> object:
        return record(graphs, lambda: (action(), torch.ones((), device="cuda").item()))

    monkeypatch.setattr(replaying.CudaGraphs, "__call__", asks)
    setup = small_setup(tmp_path, *words, AUTO)
    assert "not used" in replaying.settle_replays(setup)[0]
    run_all(small_config(*words, AUTO), SerialComm(), tmp_path / "run")
    assert difference(finished(tmp_path / "run"), expected) == "" and not replays


def test_a_round_agrees_with_the_cpu(tmp_path: Path) -> None:
    """To rounding, after a round of 8 steps a client: entries of some 0.1, so 1e-3 is far from chance."""
    states = []
    for where in (("mpi.device=cpu",), ON_IT):
        setup = small_setup(tmp_path, "method.name=fedavg", *WORDS, *where)
        states.append(one_round(setup, 1, ServerState(setup.method.initial_state()))[0].params)
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name].cpu(), value, rtol=1e-2, atol=1e-3, msg=name)
