"""Top-k: what is sent and what is held back, by hand and against sorting; FedAvg at ratio 1; bytes."""

import dataclasses
from pathlib import Path

import pytest
import torch
from by_hand import Bench, after, numbers
from small_runs import run_alone, small_setup
from torch import Tensor

from fedmpi.federation.assignment import Task
from fedmpi.methods.topk import TopK, TopKOptions, largest
from fedmpi.methods.values import Client, ClientLoad
from fedmpi.rounds.publish import share_versions
from fedmpi.rounds.state import ServerState, plan_phase
from fedmpi.store.run_dir import RunDir
from fedmpi.tensors import Params


def four(**options: object) -> Bench:
    """Two clients of four weights each."""
    return Bench(TopK, TopKOptions(**options), [[1.0] * 4] * 2, [0, 1], [[0], [1]])


def sent(bench: Bench, number: int, state: Params, *update: float) -> tuple[Client, Params]:
    """What a client uploads whose training took it from the state by `update`."""
    client = bench.client(number, state)
    bench.trainer.net.params["weight"].copy_(state["weight"] + torch.tensor([update]))
    upload = bench.method.upload(bench.trainer.net, client)
    bench.memories[number] = bench.method.remember(bench.trainer.net, client)
    return client, upload


def test_two_rounds_by_hand() -> None:
    """k = 2 of 4. Of (3, -4, 1, 2): 3 and -4; (0, 0, 1, 2) waits. Next (0, 1, 1, -1) makes (0, 1, 2, 1):
    the 2, and of the two 1s the first; (0, 0, 0, 1) waits.
    """
    bench = four(ratio=0.5)
    state = bench.start(8.0, 8.0, 8.0, 8.0)
    client, upload = sent(bench, 0, state, 3.0, -4.0, 1.0, 2.0)
    assert (upload["values"].tolist(), upload["indices"].tolist()) == ([3.0, -4.0], [0, 1])
    assert numbers(bench.memories[0], "residual") == [0.0, 0.0, 1.0, 2.0]
    assert dict(bench.method.lift(upload, client))["weight"].tolist() == [[3.0, -4.0, 0.0, 0.0]]
    _, upload = sent(bench, 0, state, 0.0, 1.0, 1.0, -1.0)
    assert (upload["values"].tolist(), upload["indices"].tolist()) == ([1.0, 2.0], [1, 2])
    assert numbers(bench.memories[0], "residual") == [0.0, 0.0, 0.0, 1.0]


def test_memories_that_a_new_run_begins_with_are_of_round_0(tmp_path: Path) -> None:
    """Rank 0 tells the workers of them, too."""
    setup = small_setup(tmp_path, "method.name=topk")
    tasks = plan_phase(setup, 1, setup.method.phases(1)[0]).tasks
    state = ServerState(memories={tasks[1].client: (0, "0f" * 16), tasks[2].client: (7, "f0" * 16)})
    assert share_versions(setup, state, tasks) == state.memories


def test_memories_of_later_rounds_stay_while_an_earlier_one_is_saved(tmp_path: Path) -> None:
    """A start that lost rounds 2 and 3 has left those of round 3, which workers may write again just now."""
    words = ("method.name=topk", "output.keep_checkpoints=9")
    run_alone(tmp_path, *words, "rounds=3")
    run_dir = RunDir(tmp_path)
    later = {version for version in run_dir.memories() if version[1] == 3}
    for number in (2, 3):
        run_dir.checkpoint_path(number).unlink()
    run_alone(tmp_path, *words, "rounds=2", resume=True)
    assert later and later <= {*run_dir.memories()}


def test_the_server_adds_the_mean_of_sparse_updates() -> None:
    """Every weight has gradient w - y with w their sum: from 0 both clients' are equal in all four entries, 0 and -1.

    k = 1: client 0 sends 0, client 1 sends 1/4 of the first weight, and the mean is 1/8 there and 0 elsewhere.
    """
    bench = four(ratio=0.25)
    assert numbers(bench.round(bench.start(0.0, 0.0, 0.0, 0.0))) == [0.125, 0.0, 0.0, 0.0]
    assert numbers(bench.memories[1], "residual") == [0.0, 0.25, 0.25, 0.25]


def test_a_sparse_download_by_hand() -> None:
    """k = 1 of 4, the mean is (0.125, 0, 0, 0) and the server keeps (0, 0.5, 0, 0.0625) of before: the second entry
    goes out, the first and the last wait. 8 bytes go down and up."""
    bench = four(ratio=0.25, download="sparse")
    state = bench.start(0.0, 0.0, 0.0, 0.0)
    state["residual..weight"] = torch.tensor([[0.0, 0.5, 0.0, 0.0625]])
    state = bench.round(state)
    assert numbers(state) == [0.0, 0.5, 0.0, 0.0]
    assert numbers(state, "residual..weight") == [0.125, 0.0, 0.0, 0.0625]
    costs = bench.method.costs(ClientLoad(0))
    assert (costs.down_bytes, costs.up_bytes) == (8, 8)


def by_sorting(values: Tensor, k: int) -> Tensor:
    """The twin that anybody would write: a stable sort by falling magnitude."""
    mask = torch.zeros(len(values), dtype=torch.bool)
    mask[values.abs().sort(descending=True, stable=True).indices[:k]] = True
    return mask


@pytest.mark.parametrize("seed", range(5))
def test_largest_is_sorting(seed: int) -> None:
    """With many ties (whole numbers of -3..3), and with the share of NaN and infinity that divergence brings."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-3, 4, (50,), generator=generator).float()
    for k in (1, 7, 25, 49, 50):
        assert torch.equal(largest(values, k), by_sorting(values, k))
    values[3], values[4], values[20] = float("nan"), float("-inf"), float("nan")
    for k in (1, 2, 3, 4, 50):
        mask = largest(values, k)
        assert int(mask.sum()) == k and mask[3] and bool(mask[4]) == (k > 1) and bool(mask[20]) == (k > 2)


@pytest.mark.parametrize("scope", ["global", "tensor"])
def test_sent_and_residual_are_update_and_old_residual(tmp_path: Path, scope: str) -> None:
    """Bit for bit: every entry is in exactly one of them, as it was; k of them as the scope says."""
    setup = small_setup(tmp_path, "method.name=topk", "method.ratio=0.1", f"method.scope={scope}")
    method, net, state = setup.method, setup.trainers[0].net, setup.method.initial_state()
    generator = torch.Generator().manual_seed(1)
    old = torch.randn(sum(value.numel() for value in state.values()), generator=generator)
    client = Client(Task(0, 0, 1, "train", 9, 1.0), state, setup.partition.client(0), 0, lambda: {"residual": old})
    for name, value in net.params.items():
        value.copy_(state[name] + torch.randn(value.shape, generator=generator))
    wanted = torch.cat([(net.params[name] - state[name]).flatten() for name in state]) + old
    upload = method.upload(net, client)
    residual = method.remember(net, client)["residual"]
    lifted = dict(method.lift(upload, client))
    assert list(lifted) == list(state)
    sparse = torch.cat([value.flatten() for value in lifted.values()])
    assert torch.equal(sparse + residual, wanted) and not bool(((sparse != 0) & (residual != 0)).any())
    scopes = [len(value.flatten()) for value in lifted.values()] if scope == "tensor" else [len(wanted)]
    masks = [by_sorting(part, -(-len(part) // 10)) for part in wanted.split(scopes)]
    assert torch.equal(sparse != 0, torch.cat(masks))
    assert method.magnitudes(upload, client).tolist() == [float(value.abs().max()) for value in lifted.values()]


def test_how_many_are_kept() -> None:
    """The share as it is written, rounded up, at least one; 0.07 * 100 is above 7 in binary."""
    for ratio, kept in ((0.1, {1: 1, 10: 1, 11: 2, 30: 3, 31: 4}), (0.07, {100: 7, 101: 8}), (1.0, {5: 5})):
        method = four(ratio=ratio).method
        assert {size: method._num_kept(size) for size in kept} == kept


def test_ratio_1_is_fedavg(tmp_path: Path) -> None:
    """After a round, up to rounding: theta_p - theta and theta + mean round once each, 2^-24 of their sizes."""
    ours = after(tmp_path / "ours", "method.name=topk", "method.ratio=1", "rounds=1")
    theirs = after(tmp_path / "theirs", "method.name=fedavg", "rounds=1").server
    largest_entry = max(float(value.abs().max()) for value in theirs.values())
    for name, value in theirs.items():
        torch.testing.assert_close(ours.server[name], value, rtol=0, atol=2**-23 * largest_entry)
    assert all(not memory["residual"].any() for memory in ours.memories.values()) and len(ours.memories) == 4


def test_bytes(tmp_path: Path) -> None:
    """The dense net down; up a value and an index, 4 + 4, of each of k entries."""
    dense = small_setup(tmp_path, "method.name=fedavg").method.costs(ClientLoad(0)).down_bytes
    costs = small_setup(tmp_path, "method.name=topk").method.costs(ClientLoad(0))
    assert (costs.down_bytes, costs.up_bytes) == (dense, 8 * -(-dense // 4 // 10))


def test_a_client_that_diverged_is_noticed() -> None:
    """A NaN anywhere is among what is sent."""
    bench = four(ratio=0.25)
    state = bench.start(0.0, 0.0, 0.0, 0.0)
    client, upload = sent(bench, 0, state, 1.0, 2.0, float("nan"), 0.0)
    assert bench.method.magnitudes(upload, dataclasses.replace(client)).isnan().all()
