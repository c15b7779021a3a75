"""HeteroFL: clients train nets of their width, each entry is averaged over the clients that hold it.

E. Diao, J. Ding, V. Tarokh: HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous
Clients, ICLR 2021, arXiv:2010.01264. Section 3 (nested sub-nets, aggregation over the holders, static BatchNorm,
Scaler, masked cross-entropy), Algorithm 1.

Server state: the net of the largest width. A client of width p gets the leading entries of every layer; the server
takes, entry by entry, the unweighted mean over the clients that sent it. The rows of the classifier come from the
clients that have examples of the class.

Differences from the paper, and from its code (dem123456789/HeteroFL):
- The defaults are those of FedHM's tables (YXShi2000/FedHM): post-activation ResNets, channels rounded to the nearest,
  no clipping. The code's own are `model.order: pre`, `rounding: ceil` and `train.clip_norm: 1`.
- The Scaler before a norm layer is a larger eps of that layer, which is the same (`surgery.scaler`).
- Every width is tested, as in FedHM's tables; the paper tests the largest. BatchNorm statistics are re-estimated for
  each (`evaluation.bn`). Masked cross-entropy is `train.masked_loss`.
"""

from fedmpi.methods.widths import ScaledOptions, WidthMethod
from fedmpi.models.width import Rounding


class HeteroFLOptions(ScaledOptions):
    name: str = "heterofl"
    """Narrow nets by capacity, nested, averaged by entry (Diao et al. 2021)."""
    rounding: Rounding = "round"
    """Channels of a layer: rounded to the nearest whole number (FedHM's tables) or up (the paper's code)."""


class HeteroFL(WidthMethod):
    """Leading channels by capacity; unweighted means over the holders."""

    Options = HeteroFLOptions
    label_aware = True
