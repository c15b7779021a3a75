"""How much of a layer lies beyond a rank: energies of singular values, and the effective rank.

For the record of a round. The energy of a matrix is its squared Frobenius norm, the sum of its squared singular values.
"""

from collections.abc import Mapping

from torch import Tensor

ONE_NET = 1e-4
"""Below this share of the energy beyond the smallest tier's rank, that tier's weights are the others' to 1 %."""


def effective_rank(sigma: Tensor) -> float:
    """Returns exp(entropy of sigma / sum sigma): Roy, Vetterli, "The effective rank", EUSIPCO 2007. 0 for zeros."""
    total = sigma.double().sum()
    shares = sigma.double() / total
    return float((-shares.xlogy(shares)).sum().exp()) if total > 0 else 0.0


def energy_along(change: Tensor, u: Tensor) -> tuple[float, Tensor]:
    """Returns the energy of `change` (M, N), and (r,) its parts along the singular vectors that are the columns of u
    (M, r), of any length; columns of zeros have none. A tier of rank r gets the first r parts. One thin product in
    float32."""
    norms = u.norm(dim=0)
    parts = (u / norms.where(norms > 0, 1)).t() @ change
    return float(change.double().square().sum()), parts.double().square().sum(1).cpu()


def table(
    spectra: Mapping[str, Tensor],
    ranks: Mapping[str, Mapping[str, int]],
    changes: Mapping[str, tuple[float, Tensor]] | None = None,
) -> dict[str, object]:
    """Returns for the record `beyond`, the share of all layers' energy beyond each tier's rank, and `layers`, the same
    of each with its effective rank. Numbers have four digits.

    `spectra` has all singular values of each layer, largest first; `ranks` each tier's r by layer. With `changes`, each
    layer's W - W_0 as `energy_along` gives it, `learned_beyond` is the share of their energy that a tier does not get.
    """
    whole = learned_whole = 0.0
    lost: dict[str, float] = dict.fromkeys(ranks, 0.0)
    learned_lost = {tier: 0.0 for tier, own in ranks.items() if changes and _is_known(own, changes)}
    layers: dict[str, object] = {}
    for name, sigma in spectra.items():
        energies = sigma.double().square()
        energy = float(energies.sum())
        whole += energy
        beyond = {tier: float(energies[ranks[tier][name] :].sum()) for tier in lost}
        _add(lost, beyond)
        row: dict[str, object] = {"effective_rank": rounded(effective_rank(sigma)), "beyond": _shares(beyond, energy)}
        if changes:
            learned, parts = changes[name]
            learned_whole += learned
            missed = {tier: max(0.0, learned - float(parts[: ranks[tier][name]].sum())) for tier in learned_lost}
            _add(learned_lost, missed)
            row["learned_beyond"] = _shares(missed, learned)
        layers[name] = row
    overall = {"beyond": _shares(lost, whole)}
    if changes:
        overall["learned_beyond"] = _shares(learned_lost, learned_whole)
    return {**overall, "layers": layers}


def _add(totals: dict[str, float], energies: Mapping[str, float]) -> None:
    for tier, energy in energies.items():
        totals[tier] += energy


def _is_known(ranks: Mapping[str, int], changes: Mapping[str, tuple[float, Tensor]]) -> bool:
    """Returns whether a tier's changes are known, in all layers, along as many singular vectors as it has."""
    return all(r <= len(changes[name][1]) for name, r in ranks.items())


def beyond(notes: Mapping[str, object], tier: str) -> float | None:
    """Reads the share of all layers' energy beyond a tier's rank out of a record's notes; None where there is none."""
    match notes:
        case {"spectrum": {"beyond": {**shares}}}:
            found = shares.get(tier)
            return found if isinstance(found, float) else None
    return None


def _shares(lost: Mapping[str, float], whole: float) -> dict[str, float]:
    return {tier: rounded(energy / whole) if whole > 0 else 0.0 for tier, energy in lost.items()}


def rounded(value: float) -> float:
    """Rounds to four digits."""
    return float(f"{value:.4g}")


def conclusions(notes: Mapping[str, object], least: str, of: str = "the factorized layers") -> list[str]:
    """Returns a line where the smallest tier, `least`, lacks nearly nothing of the others by the notes' `table`; `of`
    says what the table is about."""
    share = beyond(notes, least)
    if share is None or share >= ONE_NET:
        return []
    where = f"only {share:.1g} of the energy of {of} lies beyond the rank of tier {least}"
    return [f"all tiers answer like one net: {where}; see fedmpi/methods/RANK_COLLAPSE.md"]
