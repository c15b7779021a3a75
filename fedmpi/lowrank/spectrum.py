"""How much of a layer lies beyond a rank: energies of singular values, and the effective rank.

For the record of a round. The energy of a matrix is its squared Frobenius norm, the sum of its squared singular values.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

ONE_NET = 1e-4
"""Below this share of the energy beyond the smallest tier's rank, that tier's weights are the others' to 1 %."""


def effective_rank(sigma: Tensor) -> float:
    """Returns exp(entropy of sigma / sum sigma): Roy, Vetterli, "The effective rank", EUSIPCO 2007. 0 for zeros."""
    total = sigma.double().sum()
    shares = sigma.double() / total
    return float((-shares.xlogy(shares)).sum().exp()) if total > 0 else 0.0


def energy_outside(change: Tensor, u: Tensor) -> Tensor:
    """Returns the energy of `change` (M, N) outside the first j singular vectors, for j from 0 to r: (r + 1,).

    They are the columns of u (M, r), of any length; columns of zeros have none. One thin product in float32.
    """
    norms = u.norm(dim=0)
    parts = (u / norms.where(norms > 0, 1)).t() @ change
    whole = change.double().square().sum()
    along = torch.nn.functional.pad(parts.double().square().sum(1).cumsum(0), (1, 0))
    return (whole - along).clamp_min(0).cpu()


def table(
    spectra: Mapping[str, Tensor], ranks: Mapping[str, Mapping[str, int]], changes: Mapping[str, Tensor] | None = None
) -> dict[str, Any]:
    """Returns for the record `beyond`, the share of all layers' energy beyond each tier's rank, and `layers`, the same
    of each with its effective rank. Numbers have four digits.

    `spectra` has all singular values of each layer, largest first; `ranks` each tier's r by layer. With `changes`, each
    layer's W - W_0 by `energy_outside`, `learned_beyond` is the share of their energy that a tier does not get.
    """
    layers: dict[str, dict[str, Any]] = {}
    energies = {}
    for name, sigma in spectra.items():
        layers[name] = {"effective_rank": rounded(effective_rank(sigma))}
        energies[name] = torch.nn.functional.pad(sigma.double().square().flip(0).cumsum(0).flip(0), (0, 1))
    notes = {"beyond": _note_shares(layers, "beyond", energies, ranks)}
    if changes:
        notes["learned_beyond"] = _note_shares(layers, "learned_beyond", changes, ranks)
    return {**notes, "layers": layers}


def _note_shares(
    layers: Mapping[str, dict[str, Any]],
    key: str,
    energies: Mapping[str, Tensor],
    ranks: Mapping[str, Mapping[str, int]],
) -> dict[str, float]:
    """Notes of each layer the share of its energy beyond each tier's rank, and returns that of all layers.

    `energies` has what lies beyond 0, 1, 2, ... ranks; tiers of more than it knows are left out.
    """
    known = list(ranks)
    for name, beyond in energies.items():
        known = [tier for tier in known if ranks[tier][name] < len(beyond)]
    total = dict.fromkeys(known, 0.0)
    for name, beyond in energies.items():
        lost = {tier: float(beyond[ranks[tier][name]]) for tier in known}
        layers[name][key] = _shares(lost, float(beyond[0]))
        for tier, energy in lost.items():
            total[tier] += energy
    return _shares(total, sum(float(beyond[0]) for beyond in energies.values()))


def _shares(lost: Mapping[str, float], whole: float) -> dict[str, float]:
    return {tier: rounded(energy / whole) if whole > 0 else 0.0 for tier, energy in lost.items()}


def rounded(value: float) -> float:
    """Rounds to four digits."""
    return float(f"{value:.4g}")


def notes_of(table: Mapping[str, Any], tiers: Sequence[str], of: str = "the factorized layers") -> dict[str, object]:
    """Returns a `table` for the record, and a conclusion where the last of several tiers lacks nearly nothing of the
    others; `of` says what the table is about."""
    notes: dict[str, object] = {"spectrum": table}
    share = table["beyond"].get(tiers[-1], 1.0)
    if len(tiers) > 1 and share < ONE_NET:
        where = f"only {share:.1g} of the energy of {of} lies beyond the rank of tier {tiers[-1]}"
        notes["conclusions"] = [f"all tiers answer like one net: {where}; see fedmpi/methods/RANK_COLLAPSE.md"]
    return notes
