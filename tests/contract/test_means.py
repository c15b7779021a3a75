"""Means by hand on a net of three numbers, and what becomes of clients whose training diverges."""

import torch
from narrow_nets import client_of, context, exchanged
from torch import nn

from fedmpi.methods.fedavg import FedAvg, FedAvgOptions
from fedmpi.rounds.exchange import DROPPED, Results
from fedmpi.tensors import Params

STATE = {"weight": torch.tensor([[10.0, 20.0]]), "bias": torch.tensor([30.0])}


def mean_of(weighting: str, clients: dict[int, tuple[int, tuple[float, float, float] | None]]) -> Results:
    """client -> (examples, its three numbers, or None if it is dropped)."""
    uploads = [
        (client_of(client, 0, examples), sent and {"weight": torch.tensor([sent[:2]]), "bias": torch.tensor(sent[2:])})
        for client, (examples, sent) in clients.items()
    ]
    return exchanged(FedAvg(context(FedAvgOptions(weighting=weighting), lambda: nn.Linear(2, 1))), STATE, *uploads)


def numbers(means: Params) -> list[float]:
    return [*means["weight"].flatten().tolist(), *means["bias"].tolist()]


def test_uniform_mean_by_hand() -> None:
    """((1 + 3) / 2, (2 + 6) / 2, (-1 + 0) / 2), whoever has how many examples."""
    results = mean_of("uniform", {4: (1, (1.0, 2.0, -1.0)), 7: (99, (3.0, 6.0, 0.0))})
    assert numbers(results.means) == [2.0, 4.0, -0.5]
    assert [report.client for report in results.reports] == [4, 7]


def test_mean_by_samples_by_hand() -> None:
    """Weights 1 and 3 of 4: (1 + 9) / 4, (2 + 18) / 4, (-1 + 0) / 4."""
    results = mean_of("samples", {4: (5, (1.0, 2.0, -1.0)), 7: (15, (3.0, 6.0, 0.0))})
    assert numbers(results.means) == [2.5, 5.0, -0.25]


def test_weights_are_shared_anew_when_a_client_is_dropped() -> None:
    """Of weights 2, 4, 2 the middle one is dropped: plain halves are left, (1 + 5) / 2 and so on."""
    clients = {0: (2, (1.0, 0.0, 4.0)), 1: (4, None), 2: (2, (5.0, -8.0, 0.5))}
    assert numbers(mean_of("samples", clients).means) == [3.0, -4.0, 2.25]


def test_a_round_without_contributions_leaves_the_state() -> None:
    results = mean_of("samples", {0: (2, None), 1: (4, None)})
    assert numbers(results.means) == [10.0, 20.0, 30.0]
    assert [report.status for report in results.reports] == [DROPPED, DROPPED]


def test_a_phase_may_find_nobody() -> None:
    """Nobody eligible (dynamic tiers, a phase for one tier): no exchange of anything, and the state stays."""
    results = mean_of("samples", {})
    assert numbers(results.means) == [10.0, 20.0, 30.0] and results.reports == ()
