"""Evaluation against naive loops: counts and losses, and the three BatchNorm policies."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from by_hand import with_torchs_statistics
from small_runs import small_setup, undisturbed
from torch import Tensor, nn
from torch.nn import functional as F

from fedmpi import seeds
from fedmpi.check.contract import published_for
from fedmpi.data.batches import batch_bounds
from fedmpi.rounds.evaluate import test_tiers as score_tiers
from fedmpi.rounds.publish import publish
from fedmpi.rounds.state import ServerState, Setup

ROUND = 2


def tier_net(setup: Setup, state: dict[str, torch.Tensor], tier: int) -> nn.Module:
    """The tier's net as an ordinary module with the published values."""
    net = setup.method.net(tier)
    values = {name: torch.empty_like(value) for name, value in net.named_parameters()}
    setup.method.narrow(published_for(setup.method, state, {tier}), tier, values)
    net.load_state_dict(values)
    return net.to(memory_format=torch.channels_last)


def naive_scores(setup: Setup, net: nn.Module) -> tuple[float, float]:
    """Accuracy and mean loss over test batches, one after the other."""
    correct, loss = 0, 0.0
    with torch.no_grad():
        for start, stop in batch_bounds(len(setup.data.test_y), setup.config.evaluation.batch_size):
            inputs, targets = setup.data.test_batch(start, stop)
            logits = net(inputs)
            correct += int((logits.argmax(1) == targets).sum())
            loss += float(F.cross_entropy(logits, targets, reduction="sum"))
    return correct / len(setup.data.test_y), loss / len(setup.data.test_y)


def training_batches(setup: Setup) -> Iterator[Tensor]:
    """The inputs of which statistics are re-estimated."""
    order = seeds.numpy_generator("restat order", setup.config.seed)
    examples = order.permutation(np.sort(setup.partition.indices))
    for number, (start, stop) in enumerate(batch_bounds(len(examples), setup.config.evaluation.batch_size)):
        generator = seeds.torch_generator("restat", setup.config.seed, ROUND, number)
        draws = setup.data.draws(examples[start:stop], 1, generator, shuffle=False)
        yield setup.data.train_batch(draws, 0, 0, stop - start)[0]


@pytest.mark.parametrize("name", ["fedavg", "fedhm"])
@pytest.mark.parametrize(
    ("bn", "milestones", "restat"),
    [
        ("batch", "[1]", False),
        ("restat", "[]", True),
        ("milestone", "[1]", True),
        ("milestone", "[2]", False),
        ("milestone", "[]", False),
    ],
)
def test_scores_equal_a_naive_loop(tmp_path: Path, name: str, bn: str, milestones: str, restat: bool) -> None:
    """For every tier, in round 2. Statistics are float64 sums here and float32 running means in torch: 1e-6 of the
    loss; counts are the same. `milestone` is `restat` in the rounds greater than the first milestone's."""
    words = (f"method.name={name}", f"evaluation.bn={bn}", f"train.schedule.milestones={milestones}", "rounds=3")
    setup = small_setup(tmp_path, *words)
    state = trained_a_little(setup)
    published = publish(setup, ServerState(state), ROUND + 1, 0)
    scores = score_tiers(setup, ROUND, published)
    assert len(scores) == len(setup.method.tiers)
    for tier, score in enumerate(scores.values()):
        net = tier_net(setup, state, tier)
        batch = naive_scores(setup, net.train())
        if restat:
            accuracy, loss = naive_scores(setup, with_torchs_statistics(net, training_batches(setup)))
            assert abs(loss - batch[1]) > 1e-3, "the two policies cannot be told apart here"
        else:
            accuracy, loss = batch
        assert score.accuracy == accuracy
        assert score.loss == pytest.approx(loss, rel=1e-5)


def trained_a_little(setup: Setup) -> dict[str, torch.Tensor]:
    """The initial state, with norms that are not 1 and 0."""
    generator = torch.Generator().manual_seed(3)
    return {
        name: value + 0.3 * torch.rand(value.shape, generator=generator) if value.dim() == 1 else value
        for name, value in setup.method.initial_state().items()
    }


def test_rounds_that_are_tested_seldom_have_the_same_scores(tmp_path: Path) -> None:
    """A test covers every tier, although a round has one client, of one tier. The last round is always tested."""
    words = ("method.name=fedhm", "method.rank_ratio=[1,0.5,0.25]", "clients.per_round=1", "rounds=4")
    always = undisturbed(tmp_path / "always", *words).records
    seldom = undisturbed(tmp_path / "seldom", *words, "evaluation.every=3").records
    assert [record.get("tiers") for record in seldom] == [None, None, always[2]["tiers"], always[3]["tiers"]]


def test_statistics_of_large_activations(tmp_path: Path) -> None:
    """A net with BatchNorm works at any scale of its weights; a stem 3,000 times larger has variances of 1e7."""
    setup = small_setup(tmp_path, "method.name=fedavg", "evaluation.bn=restat")
    state = trained_a_little(setup)
    state["conv1.weight"] = 3e3 * state["conv1.weight"]
    (score,) = score_tiers(setup, ROUND, publish(setup, ServerState(state), ROUND + 1, 0)).values()
    net = with_torchs_statistics(tier_net(setup, state, 0), training_batches(setup))
    accuracy, loss = naive_scores(setup, net)
    assert score.accuracy == accuracy and score.loss == pytest.approx(loss, rel=1e-5)
