"""Server optimizers: what clients changed, on average, is the gradient of a step that the server takes.

avgm    FedAvgM. T.-M. H. Hsu, H. Qi, M. Brown: Measuring the Effects of Non-Identical Data Distribution for Federated
        Visual Classification, arXiv:1909.06335, section 4.3.
adam    FedAdam and FedYogi. S. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konecny, S. Kumar, H. B. McMahan:
yogi    Adaptive Federated Optimization, ICLR 2021, arXiv:2003.00295, Algorithm 2.

With D the mean change of a round (`mean_change`), x the server's parameters, and m = 0, v = tau^2 at the start:

    avgm    m <- beta m + D                     x <- x + lr m
    adam    m <- beta1 m + (1 - beta1) D        x <- x + lr m / (sqrt(v) + tau)
            v <- beta2 v + (1 - beta2) D^2
    yogi    as adam, but  v <- v - (1 - beta2) D^2 sign(v - D^2)

Methods whose server's state is a mean of what clients send have `method.server`. It is no method of its own, because
the same step serves nets of one size and narrow ones. m and v are server state: they lie in the checkpoint as
`server.m..<name>` and `server.v..<name>`, and an entry that no client of a round sent keeps x, m and v.

Differences from the papers:
- Hsu et al. have no server learning rate: `lr: 1`, the default of avgm.
- Neither corrects the bias of m and v, and so it is here.
- A round that brings nothing, because all its clients were dropped, takes no step.
"""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedmpi.config.fields import Positive, Section, named
from fedmpi.methods.protocol import Method
from fedmpi.methods.values import Contributions, MethodOptions
from fedmpi.tensors import Params

# No net has two dots in a row in its names: torch refuses a module without a name.
FIRST = "server.m.."
SECOND = "server.v.."
"""What the names of the moments of the server's tensors begin with."""

# Those of all experiments of Reddi et al., section 5, but for tau, which is the one that did well in most of them.
BETA1 = 0.9
BETA2 = 0.99
TAU = 1e-3


class Mean(Section):
    """x <- the mean."""

    num_moments: ClassVar[int] = 0
    """How many vectors as large as its model the server keeps beside it."""
    name: Literal["mean"] = "mean"
    """The mean of what clients send is the server's new state."""


class AvgM(Section):
    """Momentum."""

    num_moments: ClassVar[int] = 1
    name: Literal["avgm"] = "avgm"
    """FedAvgM (Hsu et al. 2019): the server's step has momentum."""
    lr: Positive = 1.0
    """The server's learning rate."""
    beta: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """The server's momentum; 0 with `lr: 1` is the mean, to rounding (of `fedhm` that of `aggregation: delta`)."""


class Adam(Section):
    """A step of each entry's own length."""

    num_moments: ClassVar[int] = 2
    name: Literal["adam"] = "adam"
    """FedAdam (Reddi et al. 2021): each entry has a step of its own length."""
    lr: Positive = 0.1
    """The server's learning rate: about how far an entry goes in a round at first."""


class Yogi(Adam):
    """Adam whose second moment changes by a step that does not depend on its size."""

    name: Literal["yogi"] = "yogi"  # type: ignore[assignment]
    """FedYogi (Reddi et al. 2021): as FedAdam, with steps that shrink more slowly."""


Server = Annotated[Mean | AvgM | Adam | Yogi, Field(discriminator="name"), named("mean")]


class ServerOptions(MethodOptions):
    """What methods share whose server state is a mean."""

    server: Server = Mean()
    """What the server makes of the mean of what clients send."""


class ServerMethod(Method):
    """A method whose server takes the steps of its optimizer; without an option `server` it takes the mean."""

    def update(self, state: Params, means: Params, contributions: Contributions) -> Params:
        server: Server = getattr(self.options, "server", Mean())
        if isinstance(server, Mean):
            return super().update(state, means, contributions)
        without_moments = {name: state[name] for name in self.state_specs()}
        change = self.mean_change(without_moments, means, contributions)
        return state | stepped(state, change, server, contributions)

    def mean_change(self, state: Params, means: Params, contributions: Contributions) -> Params:
        """Returns the weighted mean over the clients of what each has changed: a server optimizer's gradient, negated.

        By tensor of `state_specs`; zero where nobody sent an entry.
        """
        return {name: means[name] - state[name] for name in self.state_specs()}


def stepped(state: Params, change: Params, server: AvgM | Adam, contributions: Contributions) -> Params:
    """Returns the tensors of `change` after a step, with their moments. A moment that the state lacks begins with this
    step."""
    new: Params = {}
    for name, delta in change.items():
        own = {FIRST + name: state.get(FIRST + name, torch.zeros_like(delta))}
        if isinstance(server, Adam):
            own[SECOND + name] = state.get(SECOND + name, torch.full_like(delta, TAU**2))
        own[name] = state[name]
        after = dict(zip(own, _step(server, delta, *own.values()), strict=True))
        is_held = contributions.shares(name)
        if isinstance(is_held, torch.Tensor):
            kept = (is_held > 0).to(delta.device)
            after = {key: torch.where(kept, value, own[key]) for key, value in after.items()}
        new |= after
    return new


def _step(server: AvgM | Adam, delta: Tensor, first: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Returns m, for adam and yogi v, and x after a step; all of one shape."""
    if isinstance(server, AvgM):
        (x,) = others
        first = server.beta * first + delta
        return first, x + server.lr * first
    second, x = others
    first = BETA1 * first + (1 - BETA1) * delta
    square = delta.square()
    if isinstance(server, Yogi):
        second = second - (1 - BETA2) * square * (second - square).sign()
    else:
        second = BETA2 * second + (1 - BETA2) * square
    return first, second, x + server.lr * first / (second.sqrt() + TAU)
