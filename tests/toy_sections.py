"""Small sections of a config, for tests of how configs are read."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from fedmpi.config.fields import Counts, Positive, Section, Shares, free
from fedmpi.config.schema import Config


class Digits(Section):
    name: str = "digits"


class Cifar(Section):
    name: str = "cifar10"
    root: str = free("~/data")


class Iid(Section):
    name: str = "iid"

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        if config.clients.count > 1000:
            yield "clients.count", "more clients than examples"


class Net(Section):
    name: str = "net"
    width: Positive = 1.0
    blocks: Counts = (2, 2)


class Open(Section):
    name: str


class FedAvg(Section):
    name: str = "fedavg"


class FedHM(Section):
    name: str = "fedhm"
    rank_ratio: Shares = (1.0, 0.5)
    tau: Annotated[float, Field(gt=0)] | Literal["auto"] = "auto"
    layer_ranks: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)

    @property
    def tiers(self) -> tuple[float, ...]:
        return self.rank_ratio
