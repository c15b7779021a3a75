"""LG-FedAvg: a net of two weights by hand, which part is whose, its two phases."""

from pathlib import Path

import pytest
import torch
from by_hand import Bench, after, numbers
from narrow_nets import chain
from small_runs import small_setup

from fedmpi.federation.assignment import Task
from fedmpi.methods.lgfedavg import LGFedAvg, LGFedAvgOptions
from fedmpi.methods.values import ClientLoad, Costs
from fedmpi.store.hdf5 import digest_of

LG = "method.name=lgfedavg"
FIRST, LAST = "0.weight", "2.weight"


def bench(pretrain_rounds: int = 0) -> Bench:
    """x -> b a x. Two clients, f_0 = (b a)^2 / 2 and f_1 = (b a - 2)^2 / 2, a step of 1/4 each; b is global."""
    options = LGFedAvgOptions(pretrain_rounds=pretrain_rounds)
    return Bench(LGFedAvg, options, [[1.0], [1.0]], [0, 2], [[0], [1]], net=lambda: chain(1, 1, act=False))


def test_two_rounds_by_hand() -> None:
    """From a = b = 1 client 0 has gradient 1 in both: 3/4 and 3/4; client 1 has -1: 5/4 and 5/4. G = b = 1.

    Round 2, client 0: a = 3/4 of its own, b = 1. Gradients 3/4 * 1 and 3/4 * 3/4: a = 9/16, b = 55/64.
    """
    two = bench()
    state = two.start(1.0, 1.0)
    uploads = [two.trained(number, state)[1] for number in (0, 1)]
    assert [numbers(upload, LAST) for upload in uploads] == [[0.75], [1.25]]
    assert [set(upload) for upload in uploads] == [{LAST}] * 2
    assert [numbers(two.memories[number], FIRST) for number in (0, 1)] == [[0.75], [1.25]]
    client, upload = two.trained(0, two.start(1.0, 1.0), round_number=2)
    assert numbers(upload, LAST) == [55 / 64] and numbers(two.memories[0], FIRST) == [9 / 16]
    assert two.method.regions(client) == {FIRST: (slice(0, 0),)}
    assert two.method.costs(ClientLoad.of(client)) == Costs(4, 4)


def test_phase_1_uploads_everything_and_keeps_nothing() -> None:
    two = bench(pretrain_rounds=1)
    client, upload = two.trained(0, two.start(1.0, 1.0))
    assert [numbers(upload, name) for name in (FIRST, LAST)] == [[0.75], [0.75]]
    assert two.memories == {} and two.method.regions(client) == {}
    assert two.method.costs(ClientLoad.of(client)) == Costs(8, 8)


def test_a_client_new_in_phase_2_starts_from_the_servers_local_part() -> None:
    """a = 1/2, b = 1 on the server: gradients 1/2 and 1/4."""
    two = bench()
    two.trained(0, two.start(0.5, 1.0), round_number=9)
    assert two.weights == [0.375, 0.9375]


PARTS = {
    1: {"fc"},
    2: {"fc", "stages.1.0.shortcut.0", "stages.1.0.shortcut.1"},
    3: {"fc", "stages.1.0.shortcut.0", "stages.1.0.shortcut.1", "stages.1.0.conv2", "stages.1.0.bn2"},
}


@pytest.mark.parametrize("layers", PARTS)
def test_the_last_layers_are_global(tmp_path: Path, layers: int) -> None:
    """Weights, biases, and the norms that stand behind the first of them; the plan counts their bytes each way."""
    method = small_setup(tmp_path, LG, f"method.global_layers={layers}").method
    task = Task(0, 0, 5, "train", 9, 1.0)
    specs = method.upload_specs(0, task)
    assert {name.rpartition(".")[0] for name in specs} == PARTS[layers]
    assert specs == method.upload_specs(0)
    whole = dict(method.net(0, empty=True).named_parameters())
    expected = 4 * sum(whole[name].numel() for name in specs)
    assert method.costs(ClientLoad(0)).down_bytes == method.costs(ClientLoad(0)).up_bytes == expected


def test_phase_1_is_fedavg_and_local_tensors_never_change_in_phase_2(tmp_path: Path) -> None:
    """Two rounds of phase 1 and two of phase 2: the server's local part is that of FedAvg after two rounds."""
    theirs = after(tmp_path / "fedavg", "method.name=fedavg", "rounds=2").server
    first = after(tmp_path / "first", LG, "method.pretrain_rounds=2", "rounds=2")
    assert digest_of(first.server) == digest_of(theirs) and not first.memories
    both = after(tmp_path / "both", LG, "method.pretrain_rounds=2", "rounds=4")
    for name, value in both.server.items():
        assert torch.equal(value, theirs[name]) == (not name.startswith("fc.")), name
    assert 4 <= len(both.memories) <= 8
    for memory in both.memories.values():
        assert set(memory) == {name for name in theirs if not name.startswith("fc.")}
        assert not torch.equal(memory["conv1.weight"], theirs["conv1.weight"])
