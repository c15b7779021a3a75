"""Aggregates that hold where some clients send anything at all: `method.aggregate` by name, with options.

median, trimmed_mean   Of each entry. D. Yin, Y. Chen, K. Ramchandran, P. Bartlett: Byzantine-Robust Distributed
                       Learning: Towards Optimal Statistical Rates, ICML 2018, arXiv:1803.01498, Definitions 1 and 2.
krum                   P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer: Machine Learning with Adversaries:
                       Byzantine Tolerant Gradient Descent, NIPS 2017, section 4. With f attackers among n clients,
                       s(i) = sum of |V_i - V_j|^2 over the n - f - 2 clients j nearest to i; the V_i of the smallest
                       s(i), or the mean of the m of the smallest (Multi-Krum).
norm_clip              Z. Sun, P. Kairouz, A. T. Suresh, H. B. McMahan: Can You Really Backdoor Federated Learning?,
                       arXiv:1911.07963, section 4: x <- x + mean of d_i min(1, B / |d_i|), d_i what a client changed.

Rank 0 keeps what all clients of a phase send, and computes in the order of their numbers: the bits depend on no rank.

Differences from the papers:
- V_i is what a client sends, a net in place of a gradient: distances are the same.
- Weights of clients count for norm_clip alone. An attacker would choose its own number of examples.
- Of an entry that only some clients hold, the median and the trimmed mean are those of these clients.
- B may be the median of the |d_i|, which needs no setting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError
from torch import Tensor

from fedmpi.config.fields import Count, CountOrZero, Positive, Section
from fedmpi.registry import is_in_full
from fedmpi.tensors import Params, Region, Spec, region_on

if TYPE_CHECKING:
    from fedmpi.config.schema import Config


class Robust:
    """Keeps what each client sends of each tensor, whole, with NaN for entries that it does not hold."""

    def __init__(self, rule: Any, specs: Mapping[str, Spec], device: str) -> None:
        self.rule = rule
        self._specs = specs
        self._device = device
        self.sent: dict[str, dict[int, Tensor]] = {name: {} for name in specs}
        """By tensor and client."""
        self.weights: dict[int, float] = {}

    def add(self, client: int, name: str, value: Tensor, weight: float, region: Region | None) -> None:
        whole = torch.full(self._specs[name].shape, torch.nan, device=self._device)
        whole[... if region is None else region_on(region, whole.device)] = value
        self.sent[name][client] = whole
        self.weights[client] = weight

    def values(self, name: str) -> Tensor:
        """Returns what the clients have sent of a tensor, float64 (clients, ...), in the order of their numbers."""
        sent = self.sent[name]
        return torch.stack([sent[client] for client in sorted(sent)]).double()


class PerEntry(Robust):
    """The mean of each entry without its lowest and highest values."""

    def result(self, name: str, weight: float | Tensor, otherwise: Tensor) -> Tensor:
        if not self.sent[name]:
            return otherwise.clone()
        values = self.values(name).sort(dim=0).values  # NaN comes last
        counts = values.isnan().logical_not().sum(0)
        left_out = self.rule.left_out(counts)
        places = torch.arange(len(values), device=values.device).view(-1, *[1] * otherwise.dim())
        counted = (places >= left_out) & (places < counts - left_out)
        total = torch.zeros_like(values[0])
        for value in torch.where(counted, values, 0.0):
            total += value
        kept = torch.where(counts > 0, total / counted.sum(0), otherwise.double())
        return torch.empty_like(otherwise).copy_(kept)


class WholeNets(Robust):
    """x + sum of a_i (V_i - x), where the share a_i of a client depends on its whole net."""

    def begin(self, state: Params) -> None:
        """Takes the server's tensors, before the first `result`, and computes the shares."""
        self._shares = self.rule.shares(self, state) if self.weights else []

    def result(self, name: str, weight: float | Tensor, otherwise: Tensor) -> Tensor:
        total = otherwise.double()
        if self.sent[name]:
            for value, share in zip(self.values(name) - otherwise.double(), self._shares, strict=True):
                total = total + share * value
        return torch.empty_like(otherwise).copy_(total)

    def square_distances(self, reference: Mapping[str, Tensor]) -> np.ndarray:
        """Returns |V_i - reference|^2 of all clients, float64 (clients,)."""
        total = np.zeros(len(self.weights))
        for name in (name for name, sent in self.sent.items() if sent):
            differences = (self.values(name) - reference[name].double()).cpu().numpy()
            total += [np.square(each).sum() for each in differences]  # on one thread, always in the same order
        return total


class _Rule(Section):
    """One of the aggregates, with its options."""

    needs_whole_nets: ClassVar[bool] = False
    """It compares whole nets, so all clients must hold the same entries."""
    least_uploads: ClassVar[int] = 1
    """How many clients' uploads it needs."""

    def aggregate(self, specs: Mapping[str, Spec], bounds: object, total_weight: float, device: str) -> Any:
        """Makes a new one, for a phase."""
        return (WholeNets if self.needs_whole_nets else PerEntry)(self, specs, device)


class Median(_Rule):
    name: Literal["median"]
    """The median of each entry (Yin et al. 2018)."""

    def left_out(self, counts: Tensor) -> Tensor:
        """Returns how many values are left out at each end of `counts` values."""
        return (counts - 1) // 2


class TrimmedMean(_Rule):
    name: Literal["trimmed_mean"]
    """The mean of each entry without its lowest and highest values (Yin et al. 2018)."""
    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    """Share of the values of an entry that is left out at each end."""

    def left_out(self, counts: Tensor) -> Tensor:
        return (self.trim * counts.double() + 1e-9).floor()  # 0.29 * 100 is 28.999...


class Krum(_Rule):
    needs_whole_nets: ClassVar[bool] = True
    name: Literal["krum"]
    """The net that is nearest to its neighbours (Blanchard et al. 2017)."""
    attackers: CountOrZero = 1
    """f, how many clients of a round may send anything; a round to which fewer than 2 f + 3 uploads arrive changes
    nothing.
    """
    selected: Count = 1
    """m of Multi-Krum: the mean of so many nets."""

    @property
    def least_uploads(self) -> int:  # type: ignore[override]
        """Returns 2 f + 3, or m if that is more."""
        return max(2 * self.attackers + 3, self.selected)

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        needed = self.least_uploads
        if config.clients.per_round < needed:
            text = f"{self.attackers} attackers and {self.selected} selected need {needed} clients a round or more"
            yield "method.aggregate", f"krum: {text}, but clients.per_round is {config.clients.per_round}"

    def shares(self, uploads: WholeNets, state: Params) -> list[float]:
        """Returns 1 / m for the clients of the smallest scores, 0 for the others; of equals the first comes first."""
        clients = sorted(uploads.weights)
        num_neighbours = max(1, len(clients) - self.attackers - 2)
        scores = []
        for place, client in enumerate(clients):
            own = {name: sent[client] for name, sent in uploads.sent.items() if sent}
            to_others = np.delete(uploads.square_distances(own), place)
            scores.append(np.sort(to_others)[:num_neighbours].sum())
        chosen = np.argsort(scores, kind="stable")[: self.selected]
        return [float(place in chosen) / len(chosen) for place in range(len(clients))]


class NormClip(_Rule):
    needs_whole_nets: ClassVar[bool] = True
    name: Literal["norm_clip"]
    """The weighted mean of what clients changed, none of it longer than a bound (Sun et al. 2019)."""
    bound: Positive | Literal["median"] = "median"
    """Longest change of a client (Euclidean norm over the whole net); `median`: that of the round's lengths."""

    def shares(self, uploads: WholeNets, state: Params) -> list[float]:
        """Returns w_i min(1, B / |d_i|) / sum of w_i."""
        weights = [uploads.weights[client] for client in sorted(uploads.weights)]
        norms = np.sqrt(uploads.square_distances(state)).tolist()
        bound = float(np.median(norms)) if self.bound == "median" else self.bound
        factors = [bound / norm if norm > bound else 1.0 for norm in norms]
        return [weight * factor / sum(weights) for weight, factor in zip(weights, factors, strict=True)]


def _by_name(given: object) -> object:
    """Reads a bare name as the section with its defaults."""
    if isinstance(given, dict) and is_in_full(given.get("name")):
        text = "Input should be the class itself, which has no options: method.aggregate={name}"
        raise PydanticCustomError("own_aggregate", text, {"name": given["name"]})
    if given in ("median", "trimmed_mean", "krum", "norm_clip"):
        return {"name": given}
    return {"name": "", **given} if isinstance(given, dict) else given


Rule = Annotated[
    str | Annotated[Median | TrimmedMean | Krum | NormClip, Field(discriminator="name")], BeforeValidator(_by_name)
]
"""What `method.aggregate` takes: a name or a class in full, or the section of an aggregate of this file."""
