"""FedBN: BatchNorm layers stay with their client, everything else is averaged.

X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou: FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization, ICLR 2021, arXiv:2102.07623, Algorithm 1: the server takes the plain mean of every layer that is no
BatchNorm, and a client keeps scale and shift of those that are.

Server state: the whole net, of which BatchNorm's parameters never change. A client remembers its own.

Differences from the paper:
- Statistics do not travel under any method here, so they are a client's own from the start: those of each batch, or
  re-estimated on the client's training data before its test (`evaluation.bn`). The paper keeps running means.
- All clients take part in each round of the paper. Here a client begins with the server's first scale and shift: 1, 0.
"""

from torch.nn.modules.batchnorm import _BatchNorm

from fedmpi.errors import ConfigError
from fedmpi.methods.kept_parts import KeptParts
from fedmpi.methods.values import MethodContext, MethodOptions


class FedBNOptions(MethodOptions):
    name: str = "fedbn"
    """BatchNorm layers stay with their client (Li et al. 2021)."""


class FedBN(KeptParts):
    """theta <- mean of theta_p, but for the scale and shift of BatchNorm."""

    Options = FedBNOptions
    options: FedBNOptions

    def __init__(self, context: MethodContext) -> None:
        super().__init__(context)
        norms = {name for name, part in context.make(empty=True).named_modules() if isinstance(part, _BatchNorm)}
        self._own = tuple(name for name in self.model_specs if name.rpartition(".")[0] in norms)
        if not self._own:
            raise ConfigError("method.name", "fedbn keeps BatchNorm layers, and this net trains none; take lgfedavg")

    def kept(self, round_number: int | None) -> tuple[str, ...]:
        return self._own
