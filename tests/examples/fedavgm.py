"""Federated averaging with server momentum.

T.-M. H. Hsu, H. Qi, M. Brown: Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification, arXiv:1909.06335, section 4.3: v <- beta v + delta, theta <- theta + v, where
delta is the mean of what clients changed.

Differences from the paper: weights are uniform.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedmpi.methods.protocol import Method
from fedmpi.methods.values import Contributions, MethodOptions

if TYPE_CHECKING:
    from fedmpi.tensors import Params


class FedAvgMOptions(MethodOptions):
    """Options of `fedavgm`."""

    name: str = "fedavgm"
    """Federated averaging with server momentum."""
    beta: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """The server's momentum."""


class FedAvgM(Method):
    """The velocity is a part of the state that clients never see."""

    Options = FedAvgMOptions
    options: FedAvgMOptions

    def initial_state(self) -> Params:
        theta = super().initial_state()
        return theta | {f"velocity.{name}": value.new_zeros(value.shape) for name, value in theta.items()}

    def update(self, state: Params, means: Params, contributions: Contributions) -> Params:
        new = {}
        for name, mean in means.items():
            velocity = self.options.beta * state[f"velocity.{name}"] + (mean - state[name])
            new |= {name: state[name] + velocity, f"velocity.{name}": velocity}
        return new
