"""The methods by name. To add one: a file here, a line below, a YAML in configs/, a test file."""

from __future__ import annotations

from fedmpi.config.schema import Choice
from fedmpi.methods.fedavg import FedAvg, FedAvgOptions
from fedmpi.methods.fedhm import FedHM, FedHMOptions
from fedmpi.methods.protocol import Method, MethodContext

NAMES: dict[str, Choice] = {
    "fedavg": Choice(FedAvgOptions, "federated averaging (McMahan et al. 2017): one net of any width for everybody"),
    "fedhm": Choice(FedHMOptions, "low-rank factorized nets by capacity, lifted and averaged (Yao et al. 2021)"),
}

_CLASSES: dict[str, type[Method]] = {"fedavg": FedAvg, "fedhm": FedHM}


def create(context: MethodContext) -> Method:
    """The method that the context's options name."""
    return _CLASSES[context.options.name](context)
