"""Means by hand on a net of three numbers, and what becomes of clients whose training diverges."""

import pytest
import torch
from narrow_nets import client_of, context, exchanged
from torch import nn

from fedmpi.methods.fedavg import FedAvg, FedAvgOptions
from fedmpi.rounds.exchange import Results
from fedmpi.rounds.state import DROPPED
from fedmpi.tensors import Params

STATE = {"weight": torch.tensor([[10.0, 20.0]]), "bias": torch.tensor([30.0])}


def mean_of(kind: str, weighting: str, clients: dict[int, tuple[int, tuple[float, float, float] | None]]) -> Results:
    """client -> (examples, its three numbers, or None if it is dropped)."""
    uploads = [
        (client_of(client, 0, examples), sent and {"weight": torch.tensor([sent[:2]]), "bias": torch.tensor(sent[2:])})
        for client, (examples, sent) in clients.items()
    ]
    return exchanged(
        FedAvg(context(FedAvgOptions(weighting=weighting), lambda: nn.Linear(2, 1))), STATE, *uploads, kind=kind
    )


def numbers(means: Params) -> list[float]:
    return [*means["weight"].flatten().tolist(), *means["bias"].tolist()]


@pytest.mark.parametrize(
    ("weighting", "clients", "expected"),
    [
        # ((1 + 3) / 2, (2 + 6) / 2, (-1 + 0) / 2), however many examples each has.
        ("uniform", {4: (1, (1.0, 2.0, -1.0)), 7: (99, (3.0, 6.0, 0.0))}, [2.0, 4.0, -0.5]),
        # Weights 1 and 3 of 4: (1 + 9) / 4, (2 + 18) / 4, (-1 + 0) / 4.
        ("samples", {4: (5, (1.0, 2.0, -1.0)), 7: (15, (3.0, 6.0, 0.0))}, [2.5, 5.0, -0.25]),
        # Of weights 2, 4, 2 the middle one is dropped: plain halves are left, (1 + 5) / 2 and so on.
        ("samples", {0: (2, (1.0, 0.0, 4.0)), 1: (4, None), 2: (2, (5.0, -8.0, 0.5))}, [3.0, -4.0, 2.25]),
        # Nobody eligible (dynamic tiers, a phase for one tier): no exchange of anything, and the state stays.
        ("samples", {}, [10.0, 20.0, 30.0]),
    ],
)
@pytest.mark.parametrize("kind", ["gather", "reduce"])
def test_means_by_hand(kind: str, weighting: str, clients: dict[int, tuple], expected: list[float]) -> None:
    results = mean_of(kind, weighting, clients)
    assert numbers(results.means) == expected
    assert [report.client for report in results.reports] == [*clients]


def test_a_round_without_contributions_leaves_the_state() -> None:
    results = mean_of("gather", "samples", {0: (2, None), 1: (4, None)})
    assert numbers(results.means) == [10.0, 20.0, 30.0]
    assert [report.status for report in results.reports] == [DROPPED, DROPPED]
