"""FedRolex: as HeteroFL, but the window of channels that a narrow net has moves on by one in every round.

S. Alam, L. Liu, M. Yan, M. Zhang: FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction,
NeurIPS 2022, arXiv:2212.01548. Eq. 3 and Algorithm 1, with j = round - 1: of the K_i channels of layer i a client of
capacity beta has, in round j, those of

    S = {s, s + 1, ..., s + floor(beta K_i) - 1} modulo K_i,  s = j modulo K_i,

and each entry becomes the mean over the clients that held it. So after K_i rounds a client that takes part in each has
trained every channel equally often, and no client needs the capacity of the server's net.

Server state: the whole net of `model`, which is tested. A layer reads the channels that the one before it writes, and
branches that are added have one window; nets whose channels cannot be followed are refused.

Where paper and code (AIoT-MLSys-Lab/FedRolex, `resnet_server.py`) disagree, and what is done here:
- The window: the code's `torch.roll(arange(K), j)[:k]` begins at -j modulo K, so it moves backwards. Here as in the
  paper, forwards; every channel is held equally often either way.
- Its size: floor in the paper, ceil in the code (`rounding`); they agree where beta K is a whole number.
- The mean: weighted by p_n in the paper and by default, unweighted in the code (`weighting: uniform`). The code weights
  BatchNorm and the last layer by how often an entry was updated so far, the same for all clients, so that it cancels.
- In the code only, and here: a class's row of the last layer comes from the clients with examples of the class, and
  nets have the Scaler. In the code only, and settings here: a masked loss, gradients of norm 1 at most, capacities
  drawn anew in every round (`train.masked_loss`, `train.clip_norm`, `clients.tier_assignment: dynamic`).
- The code's option `overlap`, off by default, is not here.

Users of the code do not reach the paper's accuracies with it (issues 7 and 11 of its repository), and why is not known.
`configs/papers` has no table of this paper.
"""

from collections.abc import Mapping

from fedmpi.config.fields import Shares
from fedmpi.federation.tiers import Tier
from fedmpi.methods.values import Client, MethodContext, WeightedOptions
from fedmpi.methods.widths import ScaledOptions, WidthMethod
from fedmpi.models.surgery.groups import Index
from fedmpi.models.surgery.rolling import rolling_axes
from fedmpi.models.width import Rounding


class FedRolexOptions(WeightedOptions, ScaledOptions):
    name: str = "fedrolex"
    """Narrow nets by capacity, whose window of channels rolls from round to round (Alam et al. 2022)."""
    widths: Shares = (1.0, 0.5, 0.25, 0.125, 0.0625)
    rounding: Rounding = "ceil"
    """Channels of a layer: rounded up (the code; the paper rounds down), or to the nearest whole number."""


class FedRolex(WidthMethod):
    """A window of channels that rolls by one a round; means over the holders."""

    Options = FedRolexOptions
    has_full_net = True
    label_aware = True

    def __init__(self, context: MethodContext) -> None:
        super().__init__(context)
        nets = [self.net(number, empty=True) for number in range(len(self.net_widths))]
        self._axes = [rolling_axes(self._widest, net) for net in nets]

    def tested(self) -> tuple[Tier, ...]:
        return (Tier(len(self.tiers), "full", 1.0),)

    def held(self, number: int, client: Client | None) -> Mapping[str, tuple[Index, ...]]:
        """Returns the window of the client's round; for a test that of the first."""
        offset = client.task.round_number - 1 if client else 0
        windows = {}
        for name, axes in self._axes[number].items():
            windows[name] = tuple(axis.window(offset) for axis in axes)
        return windows
