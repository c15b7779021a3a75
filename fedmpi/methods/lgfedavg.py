"""LG-FedAvg: the last layers are shared, the first ones stay with their client.

P. P. Liang, T. Liu, L. Ziyin, N. B. Allen, R. P. Auerbach, D. Brent, R. Salakhutdinov, L.-P. Morency: Think Locally,
Act Globally: Federated Learning with Local and Global Representations, arXiv:2001.01523, Algorithm 1. Phase 1 is
federated averaging of the whole net. In phase 2 a client trains its local part and the global part jointly, uploads the
global part alone, and keeps the other.

Server state: the whole net; from phase 2 on only its global part changes. A client remembers its local part.

Differences from the paper, and from the authors' code (pliang279/LG-FedAvg):
- The global part is the last layers, as in the paper; the code's CIFAR net has it the other way round, convolutions
  global and linear layers local. A layer is a module with a matrix or kernel; norms belong to the part of the net in
  which they stand.
- The code begins with a trained model's checkpoint; `pretrain_rounds` trains it in the same run.
- A client that comes for the first time in phase 2 starts from the server's local part. The bytes are the paper's, 4
  |G| each way in phase 2, without that.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Literal

from torch import nn

from fedmpi.config.fields import Count, CountOrZero
from fedmpi.config.schema import Config
from fedmpi.methods.kept_parts import KeptParts
from fedmpi.methods.values import MethodOptions


class LGFedAvgOptions(MethodOptions):
    name: str = "lgfedavg"
    """First layers stay with their client, last ones are averaged (Liang et al. 2020)."""
    global_layers: Count | Literal["auto"] = "auto"
    """How many of the last layers (with a matrix or kernel: conv, linear, recurrent, in the net's own order) are
    global; as many as the net has is FedAvg. `auto`: all linear layers behind the last other one; the last one of a
    net that has only linear layers.
    """
    pretrain_rounds: CountOrZero = 0
    """Rounds of phase 1, FedAvg of the whole net, before clients begin to keep their first layers."""

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        if self.pretrain_rounds > config.rounds:
            todo = "phase 2 comes after them; make it smaller, or the run longer"
            yield "method.pretrain_rounds", f"{self.pretrain_rounds} of {config.rounds} rounds, but {todo}"


class LGFedAvg(KeptParts):
    """G <- mean of G_p; L_p stays with p."""

    Options = LGFedAvgOptions
    options: LGFedAvgOptions

    @cached_property
    def _local(self) -> tuple[str, ...]:
        """Returns the names of the local part, in the net's order: all that stand before the first global layer."""
        net = self.context.make(empty=True)
        matrices = {id(value) for value in net.parameters() if value.dim() > 1}
        layers = [layer for layer in net.modules() if matrices & {*map(id, layer.parameters(recurse=False))}]
        count = _trailing_linear(layers) if self.options.global_layers == "auto" else self.options.global_layers
        if count >= len(layers):
            return ()
        first_global = next(layers[-count].parameters(recurse=False))
        local = takewhile(lambda named: named[1] is not first_global, net.named_parameters())
        return tuple(name for name, _ in local)

    def kept(self, round_number: int | None) -> tuple[str, ...]:
        """Returns the local part in phase 2 and in a typical round, nothing in phase 1."""
        is_phase_1 = round_number is not None and round_number <= self.options.pretrain_rounds
        return () if is_phase_1 else self._local


def _trailing_linear(layers: Sequence[nn.Module]) -> int:
    count = len(list(takewhile(lambda layer: isinstance(layer, nn.Linear), reversed(layers))))
    return count if 0 < count < len(layers) else 1
