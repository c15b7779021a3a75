"""`train.cuda_graph`: replayed steps have the bits of computed ones, and where that is not sure nothing is replayed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from fast import fast
from golden_file import Told
from method_cases import CASES
from pretend import graphs
from small_runs import finished, run_all, small_config, small_setup, undisturbed

from fedmpi.check.bits import difference
from fedmpi.learning.determinism import generator_states
from fedmpi.learning.local import MaskedCrossEntropy, plain_step
from fedmpi.learning.replay import DRAWS, OTHER_BITS, replay_steps
from fedmpi.mpi.serial import SerialComm
from fedmpi.running import replaying

AUTO = "train.cuda_graph=auto"
FALLING = "train.schedule.milestones=[1]"
OWN_STEPS = ("fjord", "fjord-distillation", "splitmix", "perfedavg", "perfedavg-hf", "fdnnc", "fdnnc-both")
OWN_STEPS += ("fdnnc-bfirst",)
FEDHM = ("method.name=fedhm", "method.rank_ratio=[1,0.5,0.25]")
DROPOUT = ("model.name=torchvision:squeezenet1_1", "data.shape=[3,32,32]", "method.name=fedavg", "rounds=1")


@pytest.mark.parametrize("case", fast("fedhm", "scaffold-gradient", "fjord", of=CASES, slow=()))
def test_every_method_keeps_its_bits(tmp_path: Path, case: str) -> None:
    """Two rounds with different learning rates, masked losses, and last batches that are smaller than 4."""
    words = (*CASES[case], "rounds=2", "train.batch_size=4", FALLING)
    expected = undisturbed(tmp_path, *words)
    with graphs.on_the_cpu() as log:
        run_all(small_config(*words, AUTO), SerialComm(), tmp_path / "run")
    assert difference(finished(tmp_path / "run"), expected) == ""
    assert ("replayed" in log) == (case not in OWN_STEPS)


OTHERS: dict[str, tuple[str, ...]] = {
    "bf16": ("train.precision=bf16",),
    "fp16": ("train.precision=fp16", "train.loss_scale=16777216"),  # the first steps halve it
    "adamw": ("train.optimizer=adamw", "train.lr=0.001", "train.clip_norm=0.5"),
    "whole": ("train.drop_last=true", "train.masked_loss=false"),
    "careful": ("train.on_divergence=upload_last_finite",),
    "contiguous": ("train.memory_format=contiguous", "train.augment=false"),
    "vectors": ("data.name=synthetic", "model.name=mlp", "model.hidden=[16,8]"),
}


@pytest.mark.parametrize("name", fast("fp16", of=OTHERS))
def test_other_settings_keep_their_bits(tmp_path: Path, name: str) -> None:
    words = ("method.name=fedavg", "rounds=2", "train.batch_size=4", *OTHERS[name])
    expected = undisturbed(tmp_path, *words)
    with graphs.on_the_cpu() as log:
        run_all(small_config(*words, AUTO), SerialComm(), tmp_path / "run")
    assert difference(finished(tmp_path / "run"), expected) == "" and "replayed" in log


def test_whole_batches_are_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One client of 11 examples in batches of 4, 3 epochs: two whole ones in each, and one of 3. One more replay has
    been compared before."""
    words = ("method.name=fedavg", "clients.count=1", "clients.per_round=1", "data.num_train=11", "rounds=1")
    with graphs.on_the_cpu() as log:
        run_all(
            small_config(*words, "train.batch_size=4", "train.local_epochs=3", "partition.name=iid", AUTO),
            SerialComm(),
            tmp_path / "run",
        )
    assert log == ["recorded"] + 7 * ["replayed"]


class OwnLoss(MaskedCrossEntropy):
    """A method's own, which no graph has recorded."""


@pytest.mark.parametrize(("loss", "replays"), [(MaskedCrossEntropy, 2), (OwnLoss, 0)])
def test_a_loss_of_a_method_s_own_is_not_replayed(tmp_path: Path, loss: type[MaskedCrossEntropy], replays: int) -> None:
    setup = small_setup(tmp_path, "method.name=fedavg", "train.batch_size=4", AUTO)
    with graphs.on_the_cpu() as log:
        replaying.settle_replays(setup)
        log.clear()
        draws = setup.data.draws(np.arange(8), 1, torch.Generator())
        setup.trainers[0].run(draws, 0.1, loss(None), plain_step, lambda net: None)
    assert log == replays * ["replayed"]


def settled(folder: Path, *words: str) -> tuple[str, ...]:
    setup = small_setup(folder, "method.name=fedavg", "train.batch_size=4", *words)
    return replaying.settle_replays(setup)


def test_what_is_said(tmp_path: Path, told: Told) -> None:
    """Of each reason that is known without a recording, and of one that worked."""
    said = []
    for number, words in enumerate(
        (
            (),
            (AUTO,),
            (AUTO, "method.name=fedhm", "method.rank_ratio=[1,0.5]"),
            (AUTO, "method.name=perfedavg", "method.beta=lr"),
            (AUTO, "train.batch_size=1000"),
            (AUTO, *DROPOUT),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        with graphs.on_the_cpu():
            said.extend(settled(folder, *words))
    told("\n".join(said))


def test_nothing_is_said_on_the_cpu_unless_asked(tmp_path: Path, told: Told) -> None:
    assert settled(tmp_path) == ()
    told(*settled(tmp_path, AUTO))


def tried(folder: Path, record: Callable, *words: str) -> tuple[list[str], list[bool], bool]:
    """Why not, whether each trainer replays, and whether the generators are as before."""
    setup = small_setup(folder, "train.batch_size=4", *(words or FEDHM))
    before = generator_states(torch.device("cpu"))
    why = replay_steps(setup.trainers, np.arange(11), 0, record)
    untouched = generator_states(torch.device("cpu")) == before
    assert all(not trainer.net.copy_of_parameters().any() for trainer in setup.trainers)
    return why, [trainer.replay is not None for trainer in setup.trainers], untouched


def test_a_net_that_draws_is_not_recorded(tmp_path: Path) -> None:
    assert tried(tmp_path, lambda action: pytest.fail("recorded"), *DROPOUT) == ([DRAWS], [False], True)


@pytest.mark.parametrize("lacks", ["all", "a bit"])
def test_a_replay_with_other_bits_is_not_used(tmp_path: Path, lacks: str) -> None:
    """Of the second of three nets: the others replay."""
    calls = []

    def record(action: Callable[[], None]) -> Callable[[], None]:
        calls.append(action)
        replay = graphs.Graphs([])(action)
        return replay if len(calls) != 2 else (lambda: None) if lacks == "all" else partial(disturbed, replay)

    setup = small_setup(tmp_path, *FEDHM, "train.batch_size=4")

    def disturbed(replay: Callable[[], None]) -> None:
        replay()
        next(iter(setup.trainers[1].net.grads.values())).view(-1).view(torch.int32)[0] ^= 1

    why = replay_steps(setup.trainers, np.arange(11), 0, record)
    assert why == ["", OTHER_BITS, ""]
    assert [trainer.replay is not None for trainer in setup.trainers] == [True, False, True]


def test_after_a_failed_recording_nothing_is_replayed(tmp_path: Path, told: Told) -> None:
    """torch leaves its generators recording then."""
    calls = []

    def record(action: Callable[[], None]) -> Callable[[], None]:
        calls.append(action)
        broken = (lambda: float(torch.ones(()) * 2)) if len(calls) == 2 else action
        return graphs.Graphs([])(broken)

    why, replays, untouched = tried(tmp_path, record)
    assert replays == 3 * [False] and untouched and len(calls) == 2
    told("\n".join(why))
