"""Federated averaging.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Aguera y Arcas: Communication-Efficient Learning
of Deep Networks from Decentralized Data, AISTATS 2017, arXiv:1602.05629, Algorithm 1. Every client
trains the whole model; the server takes the weighted mean. The "width slimming" rows of FedHM's
tables are this method on a narrow model (`model.width: 0.35`).

Weights are the paper's n_k / n; `weighting: uniform` is that of FedHM's experiments, whose clients
have equal sizes. BatchNorm, the masked loss and the schedule are training settings shared by all
methods (`train`, `evaluation`).
"""

from __future__ import annotations

from typing import Literal

from fedmpi.methods.fedopt import ServerMethod, ServerOptions


class FedAvgOptions(ServerOptions):
    name: str = "fedavg"
    """Federated averaging (McMahan et al. 2017): one net of any width for all clients."""
    weighting: Literal["uniform", "samples"] = "samples"
    """Weight of a client in the mean: its number of training examples (n_k / n), or the same for all."""


class FedAvg(ServerMethod):
    """theta <- sum of w_p theta_p / sum of w_p; everything else is the protocol's default."""

    Options = FedAvgOptions
