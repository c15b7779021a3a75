"""What tests of methods share: a net of a few weights with a width, and the means of hand-written uploads.

`Small` has one feature, 4 hidden units at width 1, and 3 classes; no activation.
"""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from model_inputs import Info
from torch import Tensor, nn

from fedmpi.config.schema import Train
from fedmpi.federation.assignment import Task, assign
from fedmpi.learning.flat import Buffers, FlatNet, net_layout
from fedmpi.methods.protocol import Method
from fedmpi.methods.values import Client, MethodContext, MethodOptions
from fedmpi.models import create
from fedmpi.models.options import Model
from fedmpi.models.width import Rounding, Width
from fedmpi.mpi.communicator import SerialComm
from fedmpi.mpi.placement import Device
from fedmpi.rounds import exchange
from fedmpi.rounds.exchange import EXCHANGES, Results
from fedmpi.rounds.state import CONTRIBUTED, DROPPED, ClientReport, Published
from fedmpi.tensors import Params


class Small(nn.Module):
    """(B, 1) -> (B, 3)."""

    def __init__(self, width: Width) -> None:
        super().__init__()
        self.hidden = nn.Linear(1, width.of(4), bias=False)
        self.out = nn.Linear(width.of(4), 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(x))


def make_small(width: float = 1.0, rounding: Rounding = "round", seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Small(Width(width, rounding))


PLAINLY = {"validation_share": 0.0, "group_lasso": 0.0}
"""Options of Hermes without what most of its tests do not need."""


def chain(inputs: int, hidden: int, *, bias: bool = False, act: bool = True) -> nn.Sequential:
    """inputs -> hidden -> 1, linear up to a ReLU; with one output every prediction is class 0."""
    first, last = nn.Linear(inputs, hidden, bias=bias), nn.Linear(hidden, 1, bias=False)
    return nn.Sequential(first, nn.ReLU() if act else nn.Identity(), last)


PLAIN = Train(momentum=0.0, weight_decay=0.0, local_epochs=1, batch_size=1)


def context(options: MethodOptions, make: Callable[..., nn.Module] = make_small, **more: object) -> MethodContext:
    """Of a method on `Small`, or on another net that `make(width, rounding, seed)` makes."""

    def given(*shape: object, empty: bool = False) -> nn.Module:
        return make(*(0 if seed is None else seed for seed in shape))

    return MethodContext(options, given, **{"train": PLAIN, "num_classes": 3, **more})


DIGITS = Info(num_classes=3)


def context_of(options: MethodOptions, model: Model, info: Info = DIGITS, **more: object) -> MethodContext:
    """Of a method on a real model."""

    def make(
        width: float = 1.0, rounding: Rounding = "round", seed: int | None = None, empty: bool = False
    ) -> nn.Module:
        if empty:
            return create.skeleton(model, info, width, rounding)
        return create.build(model, info, seed or 0, width, rounding)

    return MethodContext(options, make, **{"train": PLAIN, "num_classes": info.num_classes, **more})


def client_of(client: int, tier: int, num_examples: int = 1, round_number: int = 1, **more: int) -> Client:
    task = Task(client, tier, round_number, "train", num_examples, 1.0, **more)
    return Client(task, {}, np.arange(num_examples), 0)


def exchanged(method: Method, state: Params, *uploads: tuple[Client, Params | None], kind: str = "gather") -> Results:
    """Returns what an exchange makes of these clients' uploads, None of one that is dropped."""
    sent = {client.task.client: (client, upload) for client, upload in uploads}
    plan = assign([client.task for client, _ in uploads], [0], 1)
    bounds = {name: method.bound(name, float(state[name].abs().max())) for name in method.state_specs()}
    setup = SimpleNamespace(comm=SerialComm(), method=method, device=Device("cpu", "cpu", "CPU"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "client_of", lambda setup, task, *_: sent[task.client][0])
        opened = EXCHANGES[kind](setup, Published({}, bounds, {}, plan))
        for (task,) in plan.waves:
            upload = sent[task.client][1]
            opened.post((task,), (ClientReport(task.client, DROPPED if upload is None else CONTRIBUTED), upload))
        return opened.finish(state)


def means(method: Method, state: Params, *uploads: tuple[Client, Params]) -> Params:
    return exchanged(method, state, *uploads).means


def flat(method: Method, number: int, published: Params, client: Client | None = None) -> FlatNet:
    """Net `number` in flat buffers, after `narrow`."""
    net = method.net(number)
    layout = net_layout(net.named_parameters(), (), channels_last=False)
    result = FlatNet(net, layout, Buffers(layout.num_bytes, "cpu"))
    method.narrow(published, number, result.params, client)
    return result


def filled(method: Method, value: float, number: int) -> Params:
    """An upload of net `number` with one value everywhere."""
    return {name: torch.full(tuple(p.shape), value) for name, p in method.net(number, empty=True).named_parameters()}


def state_of(method: Method, value: float) -> Params:
    return {name: torch.full(spec.shape, value) for name, spec in method.state_specs().items()}
