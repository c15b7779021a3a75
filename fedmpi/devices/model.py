"""The clock and the meter: what a turn takes on a device, in whole nanoseconds and microjoules.

A turn is download + steps + upload. A mini-batch of B examples that passes a net forward takes, for each layer,

    max(B whole macs / macs_per_s, (B whole activation_bytes + parameter_bytes) / memory_bytes_per_s) + layer_ns

where `whole` is its output channels rounded up to whole vectors (`lanes`), divided by its output channels. With its
gradients it takes three times that (backward is twice forward), and `step_ns`. An update of the optimizer moves the
parameters as often as the optimizer reads and writes them, and a method's regularizer adds its own (`Training`). A
transfer takes its latency, and its bytes over the slower of the device's link and its share of the server's. Energy is
the time of each part times its watts. Times round up; energies and shares of the server's link round down.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedmpi.config.schema import Train
from fedmpi.costs import FLOAT32_BYTES, Costs, LayerCosts
from fedmpi.devices.profiles import Profile
from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.methods.values import Training

NS_PER_S = 10**9
UJ_PER_J = 10**6
PJ_PER_UJ = 10**6
_BACKWARD = 2


@dataclass(frozen=True)
class Parts:
    """The nanoseconds of a turn."""

    down_ns: int
    compute_ns: int
    up_ns: int

    @property
    def total_ns(self) -> int:
        return self.down_ns + self.compute_ns + self.up_ns


def remaining(layers: Sequence[LayerCosts], kept: Mapping[str, tuple[int, int]]) -> Sequence[LayerCosts]:
    """Returns the layers with the share of their weights that pruning has left (`Training.kept`); activations stay."""
    pruned = []
    for layer in layers:
        left, whole = kept.get(layer.name, (1, 1))
        macs = layer.macs * left // whole
        parameter_bytes = layer.parameter_bytes * left // whole
        pruned.append(replace(layer, macs=macs, parameter_bytes=parameter_bytes))
    return pruned


def optimizer_values(train: Train) -> int:
    """Returns how many float32 numbers an update reads and writes for each parameter: SGD two and one, its momentum
    one and one, AdamW's moments two and two; clipping reads the gradient twice and writes it."""
    values = {"adamw": 7, "sgd": 5 if train.momentum else 3}[train.optimizer]
    return values + (3 if math.isfinite(train.clip_norm) else 0)


def update_ns(profile: Profile, num_bytes: int, macs: int) -> int:
    """Returns the nanoseconds of one update of optimizer and regularizer, which move and multiply so much."""
    return _ratio_ns(num_bytes, profile.memory_bytes_per_s) + _ratio_ns(macs, profile.macs_per_s)


def batch_ns(profile: Profile, layers: Sequence[LayerCosts], size: int, *, backward: bool) -> int:
    """Returns the nanoseconds of one mini-batch of this size, without an update."""
    forward_ns = 0
    for layer in layers:
        vectors = -(-layer.channels // profile.lanes)
        channels = layer.channels or 1
        whole = vectors * profile.lanes or 1
        computes_ns = _ratio_ns(size * layer.macs * whole // channels, profile.macs_per_s)
        moved_bytes = size * layer.activation_bytes * whole // channels + layer.parameter_bytes
        forward_ns += max(computes_ns, _ratio_ns(moved_bytes, profile.memory_bytes_per_s)) + profile.layer_ns
    return profile.step_ns + forward_ns * (1 + _BACKWARD if backward else 1)


def _ratio_ns(amount: int, per_s: int) -> int:
    return -(-amount * NS_PER_S // per_s)


def download_ns(profile: Profile, num_bytes: int, server: Profile, num_clients: int) -> int:
    """Returns the nanoseconds of a download; `num_clients` share the server's link."""
    return _transfer_ns(profile, num_bytes, profile.down_bytes_per_s, server.up_bytes_per_s // num_clients)


def upload_ns(profile: Profile, num_bytes: int, server: Profile, num_clients: int) -> int:
    """Returns the nanoseconds of an upload; `num_clients` share the server's link."""
    return _transfer_ns(profile, num_bytes, profile.up_bytes_per_s, server.down_bytes_per_s // num_clients)


def _transfer_ns(profile: Profile, num_bytes: int, own_per_s: int, servers_per_s: int) -> int:
    if not num_bytes:
        return 0
    return profile.latency_ns + _ratio_ns(num_bytes, max(1, min(own_per_s, servers_per_s)))


def energy_uj(profile: Profile, parts: Parts, wait_ns: int = 0) -> int:
    """Returns the energy of a turn, and of waiting for others."""
    radio = (parts.down_ns + parts.up_ns) * profile.radio_mw
    return (radio + parts.compute_ns * profile.compute_mw + wait_ns * profile.wait_mw) // PJ_PER_UJ


def memory_bytes(net: Costs, train: Train, training: Training) -> int:
    """Returns what training takes: parameters, gradients, the optimizer's state, the method's copies of the parameters,
    and activations of a mini-batch (of one net of several that train one after another)."""
    moments = {"adamw": 2, "sgd": int(train.momentum > 0)}[train.optimizer] if training.updates else 0
    activations = net.activation_bytes * train.batch_size // training.nets_in_turn
    return FLOAT32_BYTES * net.params * (2 + moments + training.copies) + activations


def server_ns(server: Profile, layers: Sequence[FactorizedLayer], moved_bytes: int) -> int:
    """Returns the server's part of a round: an SVD of each factorized layer, and bytes that adding up moves.

    An SVD of m x n numbers, m >= n, takes 6 m n^2 + 20 n^3 operations (Golub and Van Loan, Matrix Computations, table
    8.6.1, R-SVD with both factors), half as many multiply-accumulates.
    """
    macs = 0
    for layer in layers:
        n, m = sorted(layer.matrix_shape)
        macs += 3 * m * n * n + 10 * n**3
    return _ratio_ns(macs, server.macs_per_s) + _ratio_ns(moved_bytes, server.memory_bytes_per_s)
