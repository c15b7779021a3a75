"""OrigDrop: clients train the leading channels of every layer; only the full net is tested.

The baseline that drops original channels instead of orthogonal kernels in Y. Niu, S. Prakash,
S. Kundu, S. Lee, S. Avestimehr: Overcoming Resource Constraints in Federated Learning: Large Models
Can Be Trained with only Weak Clients (PriSM), TMLR 2023, section 5, "similar to HeteroFL" (Diao et
al., ICLR 2021, arXiv:2010.01264).

Server state: the full net. A client of keep ratio c gets ceil(c n) leading channels of every layer;
each entry becomes the unweighted mean over the clients that sent it.

Differences from the paper, and from its code (yuehniu/modeldecomp-fl):
- The code divides by the size of the cohort, so that channels nobody trained become 0; here, as in
  HeteroFL, which the paper says it follows, by the number of clients that hold an entry, and one that
  nobody holds keeps its value.
- The code masks: the stem and BatchNorm stay whole, and the residual stream always has the stem's
  channels. Here a client really has the small net, so the stem, BatchNorm and every layer's inputs
  are cut with the channels that they belong to: the two sides of a residual sum must have one width.
- No Scaler, no class rows of one's own: neither is in the code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from fedmpi.config.schema import Shares
from fedmpi.federation.tiers import equal_blocks
from fedmpi.methods.protocol import MethodOptions, TestedNet
from fedmpi.methods.widths import WidthMethod, falling

PAPER_RATIOS = (0.4, 0.2)
PAPER_SHARE = 0.4


class OrigDropOptions(MethodOptions):
    """Options of `origdrop`."""

    name: Literal["origdrop"] = "origdrop"
    """Leading channels by capacity; the full net is tested."""
    keep_ratio: Shares = PAPER_RATIOS
    """Share of every layer's channels that each tier trains, largest first; rounded up. At 0.4 and 0.2, the paper's,
    40 % of the clients have the first.
    """

    @property
    def tiers(self) -> tuple[float, ...]:
        return self.keep_ratio

    def tier_blocks(self, num_clients: int) -> tuple[int, ...]:
        if self.keep_ratio != PAPER_RATIOS:
            return equal_blocks(num_clients, len(self.keep_ratio))
        first = round(PAPER_SHARE * num_clients)
        return first, num_clients - first

    def problems(self, config: object) -> Iterator[tuple[str, str]]:
        yield from falling("method.keep_ratio", self.keep_ratio)


class OrigDrop(WidthMethod):
    """HeteroFL's aggregation without its Scaler; the last net is the full one, for testing."""

    rounding = "ceil"

    @property
    def net_widths(self) -> tuple[float, ...]:
        return (*super().net_widths, 1.0)

    def tested(self) -> tuple[TestedNet, ...]:
        return (TestedNet("full", len(self.tiers), 1.0),)
