"""Convs that the tested nets begin with are computed once for a batch, and every score keeps its bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fast import fast
from method_cases import CASES
from small_runs import small_setup
from torch import Tensor, nn

from fedmpi.learning import leading
from fedmpi.learning.leading import LeadingConvs
from fedmpi.rounds import evaluate
from fedmpi.rounds.publish import broadcast
from fedmpi.rounds.state import ServerState

CPU = torch.device("cpu")
ENOUGH = leading.LEAST_MACS


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[nn.Conv2d]:
    """Fills with the convs that are computed, in order."""
    found: list[nn.Conv2d] = []
    forward = nn.Conv2d.forward

    def noted(conv: nn.Conv2d, inputs: Tensor) -> Tensor:
        found.append(conv)
        return forward(conv, inputs)

    monkeypatch.setattr(nn.Conv2d, "forward", noted)
    return found


def net_of(*parts: nn.Module) -> nn.Sequential:
    """With the same values for the same parts."""
    net = nn.Sequential(*parts)
    for number, parameter in enumerate(net.parameters()):
        generator = torch.Generator().manual_seed(number)
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return net


def conv(inputs: int = 2, outputs: int = 2, **more: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, **more)


def counted(nets: Sequence[nn.Module], macs: float = ENOUGH, device: torch.device = CPU) -> int:
    load: Callable = lambda number: SimpleNamespace(module=nets[number])  # noqa: E731
    return LeadingConvs.of(range(len(nets)), load, macs, device).count


def test_convs_are_counted_up_to_the_first_that_differs() -> None:
    alike = [net_of(conv(), conv(), conv(2, 3)), net_of(conv(), conv(), conv(2, 4)), net_of(conv(), conv())]
    assert counted(alike) == 2 and counted([*alike, net_of(conv(), conv(2, 5))]) == 1
    other = net_of(conv())
    other[0].weight.data[0, 0, 0, 0] += 1
    assert counted([*alike, other]) == 0


def test_they_are_not_looked_for_where_it_does_not_pay() -> None:
    alike = [net_of(conv()), net_of(conv())]
    assert counted(alike) == 1
    assert counted(alike[:1]) == counted(alike, macs=ENOUGH / 2) == counted(alike, device=torch.device("cuda")) == 0


def passed(nets: Sequence[nn.Module], batches: Sequence[Tensor], count: int) -> list[Tensor]:
    convs = LeadingConvs(count)
    found = []
    with torch.no_grad():
        for number, batch in enumerate(batches):
            for net in nets:
                with convs.within(net, number):
                    found.append(net(batch.clone()))
    return found


@pytest.mark.parametrize(
    ("second", "num_computed"),
    [
        (net_of(conv(), nn.BatchNorm2d(2), nn.ReLU(inplace=True), conv()), 2),
        (net_of(conv(), nn.BatchNorm2d(2), nn.ReLU(), conv(2, 3)), 3),
        (net_of(conv(), nn.BatchNorm2d(2), nn.ReLU(), conv(stride=2)), 3),
        (net_of(conv(), nn.BatchNorm2d(2), nn.Sigmoid(), conv()), 3),
        (net_of(conv(dilation=2), nn.BatchNorm2d(2), nn.ReLU(), conv()), 4),
        (net_of(conv(), nn.ReLU(inplace=True), conv()), 3),
    ],
    ids=["same", "other shape", "other stride", "other inputs", "other dilation", "without BatchNorm"],
)
def test_a_conv_is_computed_where_it_may_give_something_else(
    second: nn.Module, num_computed: int, computed: list[nn.Conv2d]
) -> None:
    """The second net's convs, after the first net's two, in each of two batches."""
    nets = [net_of(conv(), nn.BatchNorm2d(2), nn.ReLU(inplace=True), conv()), second]
    batches = [torch.randn(4, 2, 5, 5, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    expected = passed(nets, batches, 0)
    assert len(computed) == 8
    computed.clear()
    assert all(map(torch.equal, passed(nets, batches, 2), expected)) and len(computed) == 2 * num_computed
    assert not any("forward" in vars(part) for net in nets for part in net.modules())


def test_what_was_written_into_is_computed_again(computed: list[nn.Conv2d]) -> None:
    """The first and the second net each change what the conv has given."""
    nets = [net_of(conv(), nn.ReLU(inplace=True)) for _ in range(3)]
    batch = torch.randn(4, 2, 5, 5, generator=torch.Generator().manual_seed(0))
    expected = passed(nets, [batch], 0)
    assert all(map(torch.equal, passed(nets, [batch], 1), expected)) and len(computed) == 6


@pytest.mark.parametrize(("numbers", "num_computed"), [(399, 4), (400, 3), (799, 3), (800, 2)])
def test_what_is_kept_has_a_limit(
    numbers: int, num_computed: int, monkeypatch: pytest.MonkeyPatch, computed: list[nn.Conv2d]
) -> None:
    """Each of two convs has 200 numbers on each side, so 400 of 4 bytes; the first that finds no room is the last."""
    monkeypatch.setattr(leading, "MOST_BYTES", 4 * numbers)
    nets = [net_of(conv(), conv()) for _ in range(2)]
    passed(nets, [torch.randn(4, 2, 5, 5)], 2)
    assert len(computed) == num_computed


@pytest.mark.parametrize("words", [(), ("model.name=mynets:Net",), ("method.name=toy_methods:Toy",)])
def test_nets_and_methods_of_others_are_computed_as_they_are(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert small_setup(tmp_path, *words).evaluation.are_known == (not words)


@pytest.mark.parametrize("bn", ["batch", "restat"])
@pytest.mark.parametrize("case", fast("fedhm", of=CASES, slow=("prism-tiers", "heterofl", "splitmix")))
def test_scores_keep_their_bits(
    tmp_path: Path, case: str, bn: str, monkeypatch: pytest.MonkeyPatch, computed: list[nn.Conv2d]
) -> None:
    setup = small_setup(tmp_path, *CASES[case], f"evaluation.bn={bn}", "evaluation.batch_size=8")
    if not setup.method.tested():
        return
    state = ServerState(setup.method.initial_state())
    nets = sorted({net.net for net in setup.method.tested()})
    published = broadcast(setup, state, 1, (), nets)
    found = []
    for least in (float("inf"), 0.0):
        computed.clear()
        monkeypatch.setattr(leading, "LEAST_MACS", least)
        scores = evaluate.test_tiers(setup, 1, published)
        found.append((scores, [score.statistics for score in scores], len(computed)))
    (scores, statistics, count), (others, again, fewer) = found
    assert scores == others and (bn == "batch" or all(map(leading._are_equal, statistics, again)))
    if case == "fedhm":
        assert 0 < fewer < count
