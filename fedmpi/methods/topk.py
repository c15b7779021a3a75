"""Top-k: clients send the largest entries of their update, and keep the rest for the next time.

A. F. Aji, K. Heafield: Sparse Communication for Distributed Gradient Descent, EMNLP 2017, arXiv:1704.05021, Algorithm
1, as the baseline of Hermes (A. Li et al., MobiCom 2021, section 5.3), which sends 10 %. A client adds what it held
back to its update, sends the k entries of largest magnitude with their indices, and holds back the others.

Server state: the model theta; theta <- theta + mean of the sparse updates, in which an entry that a client did not send
counts as 0. The download is dense, or by `download: sparse` the k largest entries of the mean with the server's own
residual, of which the state keeps the rest. A client remembers its residual, one float32 vector.

Differences from the paper, and from public codes:
- The update of a whole local training, theta_p - theta, is cut, not one step's gradient.
- k = max(1, ceil(ratio d)) out of the d entries of the whole net (`scope: global`), as the paper prefers; `tensor`
  takes k of each tensor, as FedML does, which rounds down and by default keeps no residual. The threshold is exact,
  where the paper estimates it from a sample. Of equal magnitudes those of lower index go first.
- Hermes prints costs of 0.19 to 0.22 of FedAvg at k = 10 %: those of values and indices both ways. A client that was
  not in the cohort of every round has missed updates; the bytes of these are not counted.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedmpi.config.fields import Share
from fedmpi.federation.assignment import Task
from fedmpi.learning.flat import FlatNet
from fedmpi.methods.protocol import Method, zeros_like
from fedmpi.methods.values import Client, ClientLoad, Contributions, Costs, MethodOptions, Training
from fedmpi.tensors import Params, Spec, max_magnitudes

RESIDUAL = "residual.."


class TopKOptions(MethodOptions):
    uploads_nets: ClassVar[bool] = False
    name: str = "topk"
    """Sparse updates: the largest entries travel, the rest waits (Aji and Heafield 2017)."""
    ratio: Share = 0.1
    """Share of the update's entries that a client sends (rounded up, at least one); 1 is FedAvg up to rounding."""
    scope: Literal["global", "tensor"] = "global"
    """Where the largest are looked for: in the whole net, or in each tensor by itself."""
    download: Literal["dense", "sparse"] = "dense"
    """What clients get: the whole net, or the largest `ratio` of the server's update, which keeps the rest for later
    rounds.
    """


class TopK(Method):
    """theta <- theta + mean of top_k(theta_p - theta + e_p)."""

    Options = TopKOptions
    options: TopKOptions

    @cached_property
    def _sizes(self) -> list[int]:
        """Counts the entries of each tensor, in the order in which the update is laid out."""
        return [spec.num_elements for spec in self.state_specs().values()]

    def _num_kept(self, size: int) -> int:
        # In binary 0.07 * 100 is above 7, and ceil would make it 8.
        return max(1, math.ceil(Fraction(str(self.options.ratio)) * size))

    @cached_property
    def num_sent(self) -> int:
        """Returns how many entries an upload has."""
        scopes = self._sizes if self.options.scope == "tensor" else [sum(self._sizes)]
        return sum(map(self._num_kept, scopes))

    def lift(self, upload: Params, client: Client) -> Iterator[tuple[str, Tensor]]:
        """Yields zeros but for what was sent."""
        for (name, spec), (values, places) in zip(self.state_specs().items(), self._parts(upload), strict=True):
            dense = values.new_zeros(spec.num_elements)
            dense[places] = values
            yield name, dense.view(spec.shape)

    def _parts(self, upload: Params) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields what was sent of each tensor: values, and their places in it, int64."""
        starts = [0, *accumulate(self._sizes)]
        indices = upload["indices"].long()
        edges = torch.searchsorted(indices, torch.tensor(starts).to(indices.device, non_blocking=True)).tolist()
        for start, low, high in zip(starts, edges[:-1], edges[1:], strict=False):
            yield upload["values"][low:high], indices[low:high] - start

    def magnitudes(self, upload: Params, client: Client) -> Tensor:
        return max_magnitudes(values for values, _ in self._parts(upload))

    def initial_state(self) -> Params:
        state = super().initial_state()
        return state | zeros_like(state, RESIDUAL) if self.options.download == "sparse" else state

    def update(self, state: Params, means: Params, contributions: Contributions) -> Params:
        if self.options.download == "dense":
            return {name: value + means[name] for name, value in state.items()}
        wanted = torch.cat([(means[name] + state[RESIDUAL + name]).reshape(-1) for name in self.state_specs()])
        chosen = self._chosen(wanted)
        new = dict(state)
        steps = torch.split(wanted.masked_fill(~chosen, 0.0), self._sizes)
        residuals = torch.split(wanted.masked_fill(chosen, 0.0), self._sizes)
        for name, step, residual in zip(self.state_specs(), steps, residuals, strict=True):
            new[name] = state[name] + step.view(state[name].shape)
            new[RESIDUAL + name] = residual.view(state[name].shape)
        return new

    def _chosen(self, wanted: Tensor) -> Tensor:
        """Returns which entries of an update, laid out as a vector, travel: a bool mask."""
        scopes = torch.split(wanted, self._sizes) if self.options.scope == "tensor" else [wanted]
        return torch.cat([largest(scope, self._num_kept(len(scope))) for scope in scopes])

    def upload_specs(self, tier: int, task: Task | None = None) -> dict[str, Spec]:
        return {"values": Spec((self.num_sent,)), "indices": Spec((self.num_sent,), torch.int32)}

    def upload(self, net: FlatNet, client: Client) -> Params:
        """Returns values and indices by rising index; leaves the new residual in `scratch`."""
        wanted = torch.cat([(net.params[name] - client.published[name]).reshape(-1) for name in self.state_specs()])
        if client.memory is not None:
            wanted += client.memory["residual"].to(wanted.device, non_blocking=True)
        chosen = self._chosen(wanted)
        client.scratch["residual"] = wanted.masked_fill(chosen, 0.0)
        indices = chosen.nonzero().view(-1)
        return {"values": wanted[indices], "indices": indices.int()}

    def remember(self, net: FlatNet, client: Client) -> Params:
        return {"residual": client.scratch["residual"]}

    def count_steps(self, tier: int, num_examples: float, share: float) -> Training:
        """Counts theta and the residual."""
        return replace(super().count_steps(tier, num_examples, share), copies=2)

    def costs(self, turn: ClientLoad) -> Costs:
        costs = super().costs(turn)
        return costs if self.options.download == "dense" else replace(costs, down_bytes=costs.up_bytes)


def largest(values: Tensor, k: int) -> Tensor:
    """Returns which k entries of a vector have the largest magnitudes, a bool mask; of equal ones the first.

    O(n): no sort, which takes ten times as long. A NaN counts as the largest, so that it is sent and seen.
    """
    magnitudes = values.abs().nan_to_num_(nan=math.inf, posinf=math.inf)
    threshold = magnitudes.topk(k, sorted=False).values.min()
    above = magnitudes > threshold
    ties = magnitudes == threshold
    return above | (ties & (ties.cumsum(0, dtype=torch.int32) <= k - above.sum()))
