"""The base of methods whose clients keep a part of the net: the other part travels and is averaged.

A client remembers its own part and is tested with it; there is no global net to test. One that comes for the first
time starts from the server's.
"""

from collections.abc import Mapping

from fedmpi.federation.assignment import Task
from fedmpi.federation.tiers import Tier
from fedmpi.learning.flat import FlatNet
from fedmpi.methods.protocol import Method, copy_into
from fedmpi.methods.values import Client, ClientLoad, Costs
from fedmpi.tensors import NOTHING, Params, Region, Spec


class KeptParts(Method):
    """G <- mean of G_p; L_p stays with p."""

    personal = True

    def kept(self, round_number: int | None) -> tuple[str, ...]:
        """Returns the names of the tensors that stay with their client in a round; None is a typical round."""
        return ()

    def tested(self) -> tuple[Tier, ...]:
        return ()

    def regions(self, client: Client) -> Mapping[str, Region]:
        """Names nothing of the part that clients keep, so that the server's never changes."""
        return {name: NOTHING for name in self.kept(client.task.round_number) if name in self.state_specs()}

    def narrow(self, published: Params, number: int, out: Params, client: Client | None = None) -> None:
        super().narrow(published, number, out)
        own = (client and client.memory) or {}
        copy_into({name: out[name] for name in own}, own)

    def upload_specs(self, tier: int, task: Task | None = None) -> dict[str, Spec]:
        kept = self.kept(task.round_number if task else None)
        return {name: spec for name, spec in super().upload_specs(tier).items() if name not in kept}

    def remember(self, net: FlatNet, client: Client) -> Params:
        return {name: net.params[name].clone() for name in self.kept(client.task.round_number)}

    def costs(self, turn: ClientLoad) -> Costs:
        """Counts what travels, both ways."""
        kept = self.kept(turn.round_number)
        num_bytes = sum(spec.nbytes for name, spec in self.tier_specs[turn.tier].items() if name not in kept)
        return Costs(num_bytes, num_bytes)
