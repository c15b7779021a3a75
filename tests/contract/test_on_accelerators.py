"""Whole rounds on the pretend accelerator: the CPU's bits, no mixing of devices, few waits, uploads in one piece."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from by_hand import newest
from fast import fast
from launched import unfolded
from method_cases import CASES
from pretend import device
from pretend.device import Event, of
from pretend.runs import with_accelerators
from small_runs import one_round, run_alone, small_setup, undisturbed

from fedmpi import train_round
from fedmpi.check.bits import difference
from fedmpi.rounds.state import ServerState

pytestmark = pytest.mark.skipif(not device.IS_POSSIBLE, reason="this torch registers devices in C++ only")

NOWHERE = ("mpi.device=cuda", "mpi.server_device=cpu", "mpi.exchange=gather")
EVERYWHERE = ("mpi.device=auto", "mpi.server_device=auto", "mpi.exchange=gather")
REDUCED = ("mpi.device=auto", "mpi.server_device=auto", "mpi.exchange=reduce")

MORE_WAITS_IN_TRAINING = {
    "hermes": 2,
    "hermes-all": 2,  # the accuracy says whether to prune, and the scores of the groups say which
    "scaffold": 1,  # the control variate comes from the memory
    "feddyn": 1,  # so does the linear term
    "moon": 1,  # and the client's net of before
}
MORE_WAITS = {
    **dict.fromkeys(("prism", "prism-cut", "prism-tiers"), 1),  # the singular values that it draws by
    "lora-hetlora": 1,  # whether the last ranks have shrunk
    "topk": 2,
    "topk-tensor": 2,  # how many entries are chosen, and how many of each tensor
}
"""Of a client, beside one in training (how it went) and one before its upload (whether that is within bounds)."""


NETS: dict[str, tuple[str, ...]] = {
    "mlp": ("model.name=mlp", "model.hidden=[16,8]"),
    "lenet5": ("model.name=lenet5", "data.shape=[1,28,28]", "model.width=0.25"),
    "group": ("model.norm=group",),
    "clipped": ("train.clip_norm=0.5", "train.optimizer=adamw", "train.lr=0.001"),
    "careful": ("train.on_divergence=upload_last_finite",),
    "torchvision": ("model.name=torchvision:resnet18", "data.shape=[3,16,16]", "data.num_train=32"),
}
ALL = CASES | {net: ("method.name=fedavg", *words) for net, words in NETS.items()}
"""Every method, and FedAvg with other nets and settings."""


@pytest.mark.parametrize("case", fast("fedhm", "mlp", of=ALL, slow=("hermes-all", *NETS)))
def test_the_bits_are_the_cpus(tmp_path: Path, case: str) -> None:
    """Two rounds by gather and, resumed, a third by reduce, all of it on the device, the server's part, too."""
    words = (*ALL[case], "evaluation.personal=on")
    expected = undisturbed(tmp_path, *words, "rounds=3", "mpi.device=cpu")
    with with_accelerators():
        run_alone(tmp_path / "run", *words, "rounds=2", *EVERYWHERE)
        found = run_alone(tmp_path / "run", *words, "rounds=3", *REDUCED, resume=True)
    assert difference(found, expected) == ""


@pytest.mark.slow
def test_attention_agrees_to_rounding(tmp_path: Path) -> None:
    """torch composes it of other operators for a device than for the CPU: after a round of 4 steps a client, 1e-5."""
    words = ("method.name=fedavg", "model.name=vit_small", "model.width=0.05", "rounds=1")
    states = []
    for where in (("mpi.device=cpu",), NOWHERE):
        with with_accelerators():
            setup = small_setup(tmp_path, *words, *where)
            states.append(one_round(setup, 1, ServerState(setup.method.initial_state()))[0].params)
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name].cpu(), value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("case", fast(of=CASES, slow=("fedhm", "prism", "scaffold")))
def test_what_a_round_waits_for(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds 1 and 2, the server on the CPU. A memory, which is a file, comes and goes in one copy each."""
    expected = undisturbed(tmp_path, *CASES[case], "rounds=2", "mpi.device=cpu")
    simulate, sent = train_round.simulate_client, []

    def counted(*args: object) -> object:
        result = simulate(*args)
        sent.append(bool(result[1]))
        return result

    monkeypatch.setattr(train_round, "simulate_client", counted)
    with with_accelerators(), device.log.kept() as events:
        found = run_alone(tmp_path / "run", *CASES[case], "rounds=2", *NOWHERE)
    assert difference(found, expected) == ""
    waits = of(events, "wait", within="rounds.client.simulate_client")
    memories = [event for event in waits if "tensors.to_device" in event.where and not in_training(event)]
    assert len(memories) <= 2 * len(sent), places(memories)
    own = [event for event in waits if event not in memories]
    more_in_training = MORE_WAITS_IN_TRAINING.get(case, 0)
    assert len(own) <= (2 + MORE_WAITS.get(case, 0) + more_in_training) * len(sent), places(own)
    trainings = [event for event in own if in_training(event)]
    assert len(trainings) <= (1 + more_in_training) * len(sent), places(trainings)
    uploads = of(events, "down", within="rounds.exchange._pack")
    assert len(uploads) == sum(sent), places(uploads)
    assert of(events, "new"), "nothing was computed on the device"


def in_training(event: Event) -> bool:
    return any(name == "learning.local.run" or name.endswith(".train") for name in event.where)


def places(events: Sequence[Event]) -> str:
    """Where things happened, for a test that fails."""
    tally = Counter((event.kind, " > ".join(event.where[-3:])) for event in events)
    return "\n".join(f"{count} {kind} in {where}" for (kind, where), count in tally.items())


@pytest.mark.slow
def test_keeping_the_last_finite_parameters_waits_for_the_loss_of_each_step(tmp_path: Path) -> None:
    """Four clients of 15 examples take 2 steps each, in batches of 8."""
    words = ("method.name=fedavg", "partition.name=iid", "rounds=1", "train.on_divergence=upload_last_finite")
    with with_accelerators(), device.log.kept() as events:
        run_alone(tmp_path / "run", *words, *NOWHERE)
    waits = of(events, "wait", within="rounds.client.simulate_client")
    assert len(waits) == 4 * (2 + 2), places(waits)


@pytest.mark.slow
def test_a_client_takes_its_upload_across_in_one_piece_to_the_sums(tmp_path: Path) -> None:
    """Under `gather` with the server on the device: one copy down by the worker, one up by the server, from the buffer
    that it was received in, which is page-locked. What is published goes down and up through such memory, too.
    """
    with with_accelerators() as pinned, device.log.kept() as events:
        run_alone(tmp_path / "run", "method.name=fedavg", "rounds=2", *EVERYWHERE)
    assert len(of(events, "down", within="rounds.exchange._pack")) == 8
    assert len(of(events, "up", within="rounds.exchange._receive_all_but")) == 8
    assert len(pinned) == 2 * 3 + 3, "in each phase two uploads under way and what rank 0 receives; three broadcasts"
    # The head of what is published is written by the server.
    broadcasts = [event for event in of(events, "up", "down") if event.where[-1] == "rounds.publish.publish_early"]
    crossing = [*of(events, "up", "down", within="rounds.exchange.post"), *broadcasts]
    places_of = [range(buffer.data_ptr(), buffer.data_ptr() + buffer.numel()) for buffer in pinned]
    assert len(crossing) == 2 * 8 + 2 * 3
    assert all(any(event.on_host in place for place in places_of) for event in crossing), places(crossing)


@pytest.mark.slow
def test_reduced_uploads_stay_on_the_device(tmp_path: Path) -> None:
    with with_accelerators() as pinned, device.log.kept() as events:
        run_alone(tmp_path / "run", "method.name=fedavg", "rounds=2", *REDUCED)
    assert len(pinned) == 3 and of(events, "down", "up", within="rounds.exchange.post") == []
    assert len(of(events, "down", within="rounds.exchange.finish")) == 2
    assert len(of(events, "up", within="rounds.exchange.finish")) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("bn", "limit"), [("batch", 2), ("restat", 6)])
def test_a_test_waits_once_for_each_net(tmp_path: Path, bn: str, limit: int) -> None:
    """However many batches there are; re-estimated statistics have one more."""
    words = ("method.name=fedhm", "method.rank_ratio=[1,0.5]", "rounds=1", f"evaluation.bn={bn}")
    with with_accelerators(), device.log.kept() as events:
        run_alone(tmp_path, *words, "evaluation.batch_size=8", *NOWHERE)
    waits = of(events, "wait", within="learning.evaluate.test_nets")
    found = [event for event in waits if not any(name.endswith(".narrow") for name in event.where)]
    assert len(found) <= limit, places(found)


@pytest.mark.slow
def test_a_resume_where_there_is_no_accelerator_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The pretend accelerator has the CPU's bits, so the run is that of the CPU all the same."""
    words = ("method.name=fedavg", "mpi.device=auto")
    with with_accelerators(), device.log.kept() as events:
        run_alone(tmp_path / "run", *words, "rounds=1")
    assert of(events, "up", within="rounds.exchange._receive_all_but")
    assert newest(tmp_path / "run").versions["server_device"] == "cuda"
    capfd.readouterr()
    found = run_alone(tmp_path / "run", *words, "rounds=2", resume=True)
    said = unfolded(capfd.readouterr().err)
    assert "begun with device cuda, now cpu; server_device cuda, now cpu: bits may differ from now on" in said
    assert difference(found, undisturbed(tmp_path, *words, "rounds=2")) == ""
