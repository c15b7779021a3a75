"""OrigDrop: clients train the leading channels of every layer; only the full net is tested, unless `test_tiers` is set.

The baseline that drops original channels instead of orthogonal kernels in Y. Niu, S. Prakash, S. Kundu, S. Lee, S.
Avestimehr: Overcoming Resource Constraints in Federated Learning: Large Models Can Be Trained with only Weak Clients
(PriSM), TMLR 2023, section 5, "similar to HeteroFL" (Diao et al., ICLR 2021, arXiv:2010.01264).

Server state: the full net. A client of keep ratio c gets ceil(c n) leading channels of every layer; each entry becomes
the unweighted mean over the clients that sent it.

Differences from the paper, and from its code (yuehniu/modeldecomp-fl):
- The code divides by the size of the cohort, so that channels nobody trained become 0; here, as in HeteroFL, by the
  number of clients that hold an entry, and one that nobody holds keeps its value: where no client has the full net, the
  tested one keeps some of its random start.
- The code masks: BatchNorm stays whole, and the residual stream always has the stem's channels. Here a client really
  has the small net: BatchNorm and every layer's inputs are cut with the channels that they belong to. The stem stays
  whole, as in the code, but for nets without a conv stem (perceptrons, LSTMs) and pre-activation ResNets, whose first
  block begins with a norm.
- No Scaler, no class rows of one's own: neither is in the code.
"""

from torch import nn

from fedmpi.federation.tiers import Tier
from fedmpi.lowrank.whole_stem import with_whole_stem
from fedmpi.methods.fedopt import ServerOptions
from fedmpi.methods.widths import KeepRatioOptions, WidthMethod


class OrigDropOptions(KeepRatioOptions, ServerOptions):
    name: str = "origdrop"
    """PriSM's baseline: leading channels by capacity; the full net is tested."""


class OrigDrop(WidthMethod):
    """HeteroFL's aggregation without its Scaler; the last net is the full one, for testing."""

    Options = OrigDropOptions
    options: OrigDropOptions
    has_full_net = True

    def net(self, number: int, *, empty: bool = False) -> nn.Module:
        narrow = super().net(number, empty=empty)
        try:
            return with_whole_stem(narrow, self._widest)
        except ValueError:  # a net without a stem
            return narrow

    def tested(self) -> tuple[Tier, ...]:
        return (Tier(len(self.tiers), "full", 1.0), *(super().tested() if self.options.test_tiers else ()))
