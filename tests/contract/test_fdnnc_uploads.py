"""FDNNC: who sends what (CEFO), what it costs, which layers have factors, how large cohorts are (methods.md 12.3)."""

from pathlib import Path

import numpy as np
import pytest
import torch
from fdnnc_bench import BT, MLP, A, TwoLayers, constant, iteration, method_of, published, state_of
from small_runs import small_setup

from fedmpi.errors import UserError
from fedmpi.federation.assignment import Task
from fedmpi.methods.fdnnc import BIG, FDNNC, SMALL, FDNNCOptions
from fedmpi.methods.values import Client, Turn
from fedmpi.running.remarks import equal_tiers
from fedmpi.tensors import Params

# CEFO.


@pytest.mark.parametrize("kind", ["gather", "reduce"])
@pytest.mark.parametrize("count", [2, 3, 8])
def test_halves_that_see_the_same_data_are_full(count: int, kind: str) -> None:
    """To the bit: means of equal numbers."""
    states = []
    for upload in ("full", "half"):
        method = method_of((0, 8), count, upload=upload, layer_ranks={"fc": 1})
        start = state_of(method, bias=[1.0, 2.0], **{"u.weight": [[1.0, 2.0, 3.0]], "v.weight": [[1.0], [2.0]]})
        given = constant(**{"u.weight": [[0.5, 0.25, 1.0]], "v.weight": [[3.0], [-1.0]], "bias": [0.5, 1.0]})
        states.append(iteration(method, start, given, lr=0.5, kind=kind))
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert states[1]["fc.v.weight"].tolist() == [[-0.5], [2.5]]


def test_halves_by_hand() -> None:
    """Five clients, client p sends p + 1 in each entry: b steps by 3, A and B by the means over their senders."""
    method = method_of((0, 5), 5, upload="half", layer_ranks={"fc": 1})
    start = {name: torch.zeros(value.shape) for name, value in state_of(method).items()} | {BT: torch.ones(1, 3)}

    def gradients(task: Task, known: Params) -> Params:
        return {name: torch.full(value.shape, task.client + 1.0) for name, value in known.items()}

    tasks = [Task(place, SMALL, 1, "small", 1, 1.0, place, 5) for place in range(5)]
    of_a = [task.client + 1 for task in tasks if A in method.upload_specs(SMALL, task)]
    of_b = [task.client + 1 for task in tasks if BT in method.upload_specs(SMALL, task)]
    assert len(of_a) == 2 and sorted(of_a + of_b) == [1, 2, 3, 4, 5]
    state = iteration(method, start, gradients)
    assert state["fc.bias"].tolist() == [-3.0, -3.0]
    assert state[A].flatten().tolist() == [-sum(of_a) / 2] * 2
    assert state[BT].flatten().tolist() == pytest.approx([1 - sum(of_b) / 3] * 3, rel=1e-6)


def test_a_factor_that_nobody_sends_stays() -> None:
    """Both senders of A diverge: B and the bias step alone."""
    method = method_of((0, 4), 4, upload="half", layer_ranks={"fc": 1})
    start = state_of(method, bias=[0.0, 0.0], **{"u.weight": [[1.0, 2.0, 3.0]], "v.weight": [[1.0], [2.0]]})
    ones = constant(**{"u.weight": [[1.0] * 3], "v.weight": [[1.0], [1.0]], "bias": [1.0, 1.0]})
    state = iteration(
        method, start, lambda task, known: None if A in method.upload_specs(SMALL, task) else ones(task, known)
    )
    assert state[A].tolist() == [[1.0], [2.0]]
    assert state[BT].tolist() == [[0.0, 1.0, 2.0]] and state["fc.bias"].tolist() == [-1.0, -1.0]


def senders_of_a(method: FDNNC, count: int, number: int) -> list[int]:
    tasks = (Task(place, SMALL, number, "small", 1, 1.0, place, count) for place in range(count))
    return [task.place for task in tasks if A in method.upload_specs(SMALL, task)]


def test_who_sends_a() -> None:
    """floor(c / 2) of c, others in other rounds; every place about half of the time; one client takes turns.

    400 rounds: half of them +- 5 standard deviations of 10.
    """
    method = method_of((0, 9), 9, upload="half", layer_ranks={"fc": 1})
    for count in (2, 5, 8):
        drawn = [senders_of_a(method, count, number) for number in range(1, 401)]
        assert {len(places) for places in drawn} == {count // 2} and len(set(map(tuple, drawn))) > 1
        often = np.bincount(np.concatenate(drawn), minlength=count)
        assert np.all(np.abs(often - 400 * (count // 2) / count) < 50)
    assert [senders_of_a(method, 1, number) for number in (1, 2, 3, 4)] == [[0], [], [0], []]


@pytest.mark.parametrize("blocks", [(0, 1), (1, 1)])
def test_one_small_device_takes_turns(blocks: tuple[int, int]) -> None:
    method = method_of(blocks, 1, upload="half", layer_ranks={"fc": 1}, pattern="switch")
    state = state_of(method, **{"u.weight": [[1.0, 0.0, 0.0]], "v.weight": [[1.0], [0.0]]})
    state = state | ({"fc.weight": torch.tensor([[1.0, 0, 0], [0, 0, 0]])} if blocks[0] else {})
    given = constant(**{"u.weight": [[0.0, 1.0, 0.0]], "v.weight": [[0.0], [1.0]]})
    first = iteration(method, state, given, number=1)
    second = iteration(method, state, given, number=2)
    assert published(method, first, BIG)["fc.weight"].flatten().tolist() == pytest.approx([1, 0, 0, -1, 0, 0], abs=1e-6)
    assert published(method, second, BIG)["fc.weight"].flatten().tolist() == pytest.approx([1, -1] + [0] * 4, abs=1e-6)


# Sizes.


def test_uploaded_numbers() -> None:
    """Layers 5 x 6 (r = 2: 22 < 30) and 3 x 5 (r = 1: 8 < 15), M x N with biases of 5 and 3.

    Big: 30 + 5 + 15 + 3 = 53. FULL: 22 + 5 + 8 + 3 = 38. HALF: 11 + 5 + 4 + 3 = 23 on the average; with A
    (5 r + 3 r' = 13) 21, with B (6 r + 5 r' = 17) 25.
    """
    ranks = {"fc1": 2, "fc2": 1}
    full, half = (method_of((2, 4), 4, TwoLayers, upload=upload, layer_ranks=ranks) for upload in ("full", "half"))
    assert [full.costs(Turn(tier)).down_bytes // 4 for tier in (BIG, SMALL)] == [53, 38]
    assert [half.costs(Turn(tier)).down_bytes // 4 for tier in (BIG, SMALL)] == [53, 38]
    assert [full.costs(Turn(tier)).up_bytes // 4 for tier in (BIG, SMALL)] == [53, 38]
    assert [half.costs(Turn(tier)).up_bytes // 4 for tier in (BIG, SMALL)] == [53, 23]
    tasks = [Task(2 + place, SMALL, 1, "small", 1, 1.0, place, 4) for place in range(4)]
    clients = [Client(task, {}, np.arange(1), 0) for task in tasks]
    assert sorted(half.costs(Turn.of(client)).up_bytes // 4 for client in clients) == [21, 21, 25, 25]
    assert {half.costs(Turn.of(client)).down_bytes // 4 for client in clients} == {38}
    assert {full.costs(Turn.of(client)).up_bytes // 4 for client in clients} == {38}


def test_which_layers_are_factorized(tmp_path: Path) -> None:
    """r = ratio min(M, N) where that saves, the last layer included, convs never; `dense` and r by pattern."""

    def ranks(*words: str) -> dict[str, int]:
        method = small_setup(tmp_path, *MLP, *words).method
        assert isinstance(method, FDNNC)
        return {name: layer.r(0) for name, layer in method.layers.items()}

    assert ranks() == {"layers.0": 4, "layers.2": 1}  # 16 x 64, 4 x 16
    assert ranks("method.rank_ratio=0.75") == {"layers.0": 12, "layers.2": 3}  # 80 12 < 1024, 20 3 < 64
    assert ranks("method.rank_ratio=0.9") == {}  # 80 14 and 20 4
    assert ranks('method.layer_ranks={"layers.0": dense, "*.2": 2}') == {"layers.2": 2}
    convs = small_setup(tmp_path, "method.name=fdnnc", "method.rank_ratio=0.1").method
    assert [*convs.layers] == ["fc"]
    with pytest.raises(UserError, match="no layer matches"):
        ranks('method.layer_ranks={"layer.0": 2}')


def test_cohorts_are_shared_in_proportion() -> None:
    """The paper's 20 of 200 devices: 10 % of each group, and one at least; an empty group has no phase."""

    def sizes(blocks: tuple[int, int], per_round: int) -> list[int | None]:
        return [phase.num_clients for phase in method_of(blocks, per_round).phases(1)]

    assert [sizes((big, 200 - big), 20) for big in (0, 40, 100, 140, 200)] == [[20], [4, 16], [10, 10], [14, 6], [20]]
    assert sizes((1, 99), 10) == [1, 9] and sizes((99, 1), 10) == [9, 1]
    assert sizes((5, 5), 10) == [5, 5]
    assert FDNNCOptions(big_share=0.7).tier_blocks(200) == (140, 60)
    assert FDNNCOptions(big_share=0).tier_blocks(9) == (0, 9)


def test_what_is_hardly_meant_is_said() -> None:
    assert method_of((1, 1), 2, layer_ranks={"fc": 1}).warnings() == ()
    assert "smaller" in equal_tiers(method_of((1, 1), 2, layer_ranks={"fc": 2}))[0]
    assert "FedSGD" in method_of((0, 2), 2, layer_ranks={"fc": 1}, pattern="switch").warnings()[0]
    assert method_of((0, 2), 2, layer_ranks={"fc": 1}, pattern="both").warnings() == ()
