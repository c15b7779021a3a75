"""What a federated method is: the functions a round calls, server half and client half in one class.

A round (`fedmpi.train_round`) calls, in this order:

    rank 0          publish(state)            what clients need, as named tensors; then the `late` ones
    every worker    narrow                    this client's net: out of what was published, and out of its memory
                    train                     local training, with `after_backward` in each step
                    upload, remember          the client's result, in the form that travels; its new memory
    rank 0 (or the  lift(upload)              the result in server coordinates, tensor by tensor
     worker)
    rank 0          update(state, means)      the new state, out of weighted means over the clients

After a round, where clients are tested with nets of their own: narrow, adapt, test.

`Method` itself is federated averaging, and a method overrides what it changes. State and published tensors are values:
named tensors, passed in and returned; nothing is remembered in `self` between rounds. A method never sees a
communicator, a path, a clock or an environment variable. How to write one: `fedmpi/methods/README.md`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property, lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from fedmpi.exactsum import bound_of
from fedmpi.federation.assignment import Task
from fedmpi.federation.tiers import Tier
from fedmpi.learning.flat import FlatNet
from fedmpi.learning.local import LocalTrainer, TrainOutcome, step_sizes
from fedmpi.methods.values import (
    Client,
    ClientLoad,
    Contributions,
    Costs,
    LocalWork,
    MethodContext,
    MethodOptions,
    Phase,
    Training,
)
from fedmpi.tensors import Params, Region, Spec, max_magnitudes, specs_of, to_device, total_bytes

if TYPE_CHECKING:
    from fedmpi.lowrank.factorized import FactorizedLayer

_MOST_COUNTED = 10_000
ROUND = "round.."
"""What the names of tensors that hold round numbers begin with, in a state or a memory."""


class Method:
    """Federated averaging, and the base of every other method. It is given `context`, `options` and `tiers`."""

    Options: ClassVar[type[MethodOptions]]
    """Its options, with its name and one line about it."""
    options: MethodOptions
    personal: bool = False
    """Clients end with nets of their own, so `evaluation.personal: auto` tests each on its own data."""
    own_decay: Collection[str] = ()
    """Names of parameters that weight decay must leave alone, because the method decays them itself."""
    layers: Mapping[str, FactorizedLayer] = {}
    """The layers that it factorizes, by name, whose singular values a page of the run shows."""
    late: Mapping[tuple[str, ...], float] = {}
    """Published tensors that take long to compute (FedHM: the factors). Maps each group of names that one computation
    yields to its cost in multiply-accumulates of training; 0 means unknown. `publish` is called for the other tensors
    first, and clients that need no late ones train meanwhile. If all clients wait and the costs are known, every rank
    computes some groups."""

    def __init__(self, context: MethodContext) -> None:
        self.context = context
        self.options = context.options
        self.tiers = tuple(Tier(i, f"{capacity:g}", capacity) for i, capacity in enumerate(self.options.tiers))
        self._counted = lru_cache(maxsize=_MOST_COUNTED)(self.count_steps)

    @property
    def keeps_memory(self) -> bool:
        """Returns whether clients keep something between rounds: the method has a `remember`."""
        return type(self).remember is not Method.remember

    @cached_property
    def late_nets(self) -> frozenset[int]:
        """Returns the numbers of the nets that are made of `late` tensors, among others."""
        late = frozenset(chain.from_iterable(self.late))
        return frozenset(net for net in all_nets(self) if not late.isdisjoint(self.published_specs([net])))

    @cached_property
    def model_specs(self) -> dict[str, Spec]:
        """Returns names and shapes of the model's parameters, as the server keeps them."""
        return net_specs(self.context.make(empty=True))

    @cached_property
    def tier_specs(self) -> list[dict[str, Spec]]:
        """Returns names and shapes of the parameters of each tier's net."""
        return [net_specs(self.net(tier.index, empty=True)) for tier in self.tiers]

    # The shape of a round.

    def tested(self) -> tuple[Tier, ...]:
        """Returns the nets that are tested on the whole test set, with their names in the records: by default those
        that the tiers train."""
        return self.tiers

    def phases(self, round_number: int) -> tuple[Phase, ...]:
        """Returns the exchanges of this round, in order."""
        return (Phase(),)

    def costs(self, turn: ClientLoad) -> Costs:
        """Returns the bytes of a turn, by default: a client gets its net and sends what `upload_specs` says."""
        down = self._net_bytes[turn.tier]
        up = down
        if type(self).upload_specs is not Method.upload_specs:
            up = total_bytes(self.upload_specs(turn.tier, turn.task).values())
        return Costs(down, up)

    @cached_property
    def _net_bytes(self) -> list[int]:
        return [total_bytes(specs.values()) for specs in self.tier_specs]

    def count_training(self, turn: ClientLoad) -> Training:
        """Returns what a turn computes. To override where task or client decide it, not `count_steps` alone."""
        return self._counted(turn.tier, turn.num_examples, turn.share)

    def count_steps(self, tier: int, num_examples: float, share: float) -> Training:
        """Returns what a share of the local work on so many examples computes, by default plain steps of the tier's
        net. Counted once: a round of a fast net takes little longer."""
        return Training.of(tier, step_sizes(self.context.train, num_examples, share))

    @cached_property
    def _num_params(self) -> int:
        return sum(spec.num_elements for spec in self.model_specs.values())

    # Server half.

    def state_specs(self) -> dict[str, Spec]:
        """Returns names and shapes of the server's tensors that uploads are averaged into."""
        return self.model_specs

    def sums(self) -> Mapping[str, str]:
        """Names every sum that uploads are added into, and the server tensor whose shape and bound it has.

        A method that needs a tensor's sum in parts (FedHM: by tier) gets each part over the weight of all clients.
        """
        return {name: name for name in self.state_specs()}

    def initial_state(self) -> Params:
        """Returns the state before round 1, a function of the seed alone: the model's parameters, and zeros for what
        else `state_specs` names."""
        state = {name: value.detach().clone() for name, value in self.context.make().named_parameters()}
        missing = {name: torch.zeros(spec.shape) for name, spec in self.state_specs().items() if name not in state}
        return state | missing

    def published_specs(self, nets: Collection[int]) -> dict[str, Spec]:
        """Returns names and shapes of what these nets (by number) are made of, without asking another rank."""
        return self.state_specs()

    def publish(self, state: Params, nets: Collection[int], out: Params) -> None:
        """Writes the tensors of `out`, which these nets are made of. One call has those of `published_specs` that are
        not late, another the late ones."""
        copy_into(out, state)

    def client_weight(self, task: Task) -> float:
        """Returns the weight of a client's result, up to a factor common to the cohort: its number of examples where an
        option `weighting` is `samples`, else 1."""
        return float(task.num_examples) if getattr(self.options, "weighting", "uniform") == "samples" else 1.0

    def lift(self, upload: Params, client: Client) -> Iterator[tuple[str, Tensor]]:
        """Yields (name in `sums`, tensor) pairs: the upload as the server averages it, one tensor at a time.

        The tensor has the shape of the region that `regions` gives, else of the whole. A name that is left out enters
        its mean as zeros, with the client's weight, as if it were sent; an empty region keeps the client out of that
        mean.
        """
        yield from upload.items()

    def regions(self, client: Client) -> Mapping[str, Region]:
        """Returns the entries a client holds, for tensors of which it does not hold all. Empty: it holds everything.

        A function of what every rank knows and, where clients keep a memory, of the client's new memory.
        """
        return {}

    def magnitudes(self, upload: Params, client: Client) -> Tensor:
        """Bounds max|x| of what `lift` will give, one number for each of `state_specs` in its order."""
        sent = next(iter(upload.values()), None)
        nothing = torch.empty(0) if sent is None else sent.new_empty(0)
        return max_magnitudes(upload.get(name, nothing) for name in self.state_specs())

    def bound(self, name: str, magnitude: float) -> float:
        """Returns B of a server tensor, whose largest entry is `magnitude`: a client's entry beyond it counts as
        diverged. To override where uploads are no parameters."""
        return bound_of(magnitude)

    def warnings(self) -> tuple[str, ...]:
        """Returns what is legal but hardly meant, one line each; said before a run and in its plan."""
        return ()

    def update(self, state: Params, means: Params, contributions: Contributions) -> Params:
        """Returns the new state, out of the old and the weighted means over the clients that contributed. Entries that
        nobody sent have their old value in `means`."""
        return {**state, **means}

    def diagnostics(self, state: Params, published: Params, contributions: Contributions) -> Mapping[str, object]:
        """Returns numbers about a round for its record: what JSON can hold.

        `state` is the one at its end, `published` what was published of it, `contributions` those of its last phase.
        Lines under `conclusions` are printed when the run ends, those of the last round.
        """
        return {}

    # Client half.

    def net(self, number: int, *, empty: bool = False) -> nn.Module:
        """Returns the net that clients of the tier of this number train, or that is only tested, with any values (they
        come from `narrow`); `empty`: without values, on the meta device."""
        return self.context.make(empty=empty)

    def narrow(self, published: Params, number: int, out: Params, client: Client | None = None) -> None:
        """Writes net `number` into `out`, its parameters: for a test (None) or a client, with what it remembers."""
        copy_into(out, published)

    def drawn(self, client: Client) -> Mapping[str, object]:
        """Returns what was drawn at random for this client in this phase, for the record: what JSON can hold. It calls
        the functions that training calls, and uses no memory.

        By default it names the tensors that other clients of its tier send, but not this one.
        """
        sent = self.upload_specs(client.task.tier, client.task)
        withheld = [name for name in self.upload_specs(client.task.tier) if name not in sent]
        return {"withheld": withheld} if withheld else {}

    def train(self, trainer: LocalTrainer, client: Client, work: LocalWork) -> TrainOutcome:
        """Trains by epochs of mini-batch SGD. A method whose steps have other gradients passes on
        `replace(work, backward=...)` or `loss=...`."""
        draws = work.draws(trainer, client.examples)
        return trainer.run(draws, work.lr, work.loss, work.backward, partial(self.after_backward, client=client))

    def after_backward(self, net: FlatNet, client: Client) -> None:
        """Adds a regularizer's gradient, corrects or masks gradients, before the optimizer's step."""

    def adapt(self, trainer: LocalTrainer, client: Client, work: LocalWork) -> None:
        """Adapts the net that `narrow` has filled, before it is tested on the client's own data."""

    def upload_specs(self, tier: int, task: Task | None = None) -> dict[str, Spec]:
        """Returns names and shapes of what a client of this tier sends back, in this task if tasks differ."""
        return self.tier_specs[tier]

    def upload(self, net: FlatNet, client: Client) -> Params | None:
        """Returns what the client sends back, by default the parameters that `upload_specs` names; views of the net are
        copied at once. None: nothing counts, as of a client that sends gradients and has diverged
        (`client.is_restored`)."""
        return {name: net.params[name] for name in self.upload_specs(client.task.tier, client.task)}

    def remember(self, net: FlatNet, client: Client) -> Params:
        """Returns the new memory, of any shapes; empty: the client keeps the old one."""
        return {}


def all_nets(method: Method) -> range:
    """Returns the numbers of a method's nets: one for each tier, then one for each net that is only tested."""
    return range(max([len(method.tiers), *(net.index + 1 for net in method.tested())]))


def net_specs(net: nn.Module) -> dict[str, Spec]:
    """Returns names and shapes of a net's parameters, kernels with their channels last."""
    return specs_of(net.named_parameters(), channels_last=True)


def renumbered(tensors: Params, num_rounds: int) -> Params:
    """Returns a state or a memory of a run of so many rounds as a new run begins with it, whose rounds count from 1."""
    return {name: value - num_rounds if name.startswith(ROUND) else value for name, value in tensors.items()}


def zeros_like(tensors: Params, prefix: str = "") -> Params:
    """Returns zeros in the shapes of these tensors, by their names behind a prefix."""
    return {prefix + name: torch.zeros_like(value) for name, value in tensors.items()}


def pull(net: FlatNet, client: Client, mu: float) -> None:
    """Adds the gradient of mu/2 |w - w_t|^2, w_t what was published; with mu = 0 gradients keep their bits."""
    if mu > 0:
        gradients = list(net.grads.values())
        torch._foreach_add_(gradients, list(net.params.values()), alpha=mu)
        torch._foreach_sub_(gradients, [client.published[name] for name in net.grads], alpha=mu)


def copy_into(target: Params, source: Mapping[str, Tensor]) -> None:
    """Copies every tensor of `target` from its namesake in `source`; what lies on another device comes in one piece.
    Raises ValueError where the two have not the same shape, because torch would broadcast."""
    for name, value in target.items():
        if source[name].shape != value.shape:
            raise ValueError(f"{name} is {list(source[name].shape)}, but {list(value.shape)} is to be filled")
    if target:  # torch refuses empty lists
        near = to_device({name: source[name] for name in target}, next(iter(target.values())).device)
        torch._foreach_copy_(list(target.values()), list(near.values()))
