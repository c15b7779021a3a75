"""The broadcast: what rank 0 tells the clients, in one packed buffer, or in two.

After round t it serves both the test of round t and the clients of round t + 1, so a factorization is computed once and
never saved. With the method's tensors travel the bounds that exact sums need and, if the method keeps client memories,
the versions that the coming clients continue from.

Tensors that take long to compute (`Method.late`) follow in a second buffer. Rank 0 computes it while the others train
or test nets that need none of it; each of them takes it when it comes to the first net that does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedmpi.errors import DivergenceError
from fedmpi.federation.assignment import Task
from fedmpi.rounds.state import Published, ServerState, Setup, is_evaluated, plan_phase
from fedmpi.tensors import Layout, Params, Spec, host_buffer, max_magnitudes

if TYPE_CHECKING:
    from fedmpi.store.memory import Version

_BOUNDS = "#bounds"
_VERSIONS = "#versions"
_VERSION = np.dtype([("round", "i8"), ("digest", "V16")])


def publish(setup: Setup, state: ServerState, number: int, place: int) -> Published:
    """Broadcasts all that `publish_early` and `publish_late` do, and waits for it."""
    published = publish_late(setup, state, number, publish_early(setup, state, number, place))
    published.wait()
    return published


def publish_early(setup: Setup, state: ServerState, number: int, place: int) -> Published:
    """Broadcasts what the clients of phase `place` of round `number` need, without what is late.

    Before the first phase this includes what the test of the round before needs. Raises `DivergenceError` if the
    server's state is not finite.
    """
    method = setup.method
    plan = plan_phase(setup, number, method.phases(number)[place])
    nets = {task.tier for task in plan.tasks}
    if place == 0 and number > 1 and is_evaluated(setup.config, number - 1):
        nets |= tested_nets(setup)
    specs = method.published_specs(sorted(nets))
    late = {name: specs[name] for name in specs if name in method.late}
    early = {name: specs[name] for name in specs if name not in late}
    layout = Layout.of(_head(setup, plan.tasks) | early)
    on_host, buffer = _buffers(setup, layout)
    with setup.clock.stage("submodel_creation", number):
        if setup.comm.is_root:
            _write(setup, state, plan.tasks, sorted(nets), layout.views(buffer))
    with setup.clock.stage("communication", number):
        setup.comm.bcast(on_host.copy_(buffer))
    views = layout.views(on_host)
    bounds = dict(zip(method.state_specs(), views[_BOUNDS].tolist(), strict=True))
    versions = _read_versions(views[_VERSIONS], plan.tasks)
    with setup.clock.stage("communication", number):
        params = layout.views(on_host.to(setup.data.device))
    return Published({name: params[name] for name in early}, bounds, versions, plan, sorted(nets), late)


def publish_late(setup: Setup, state: ServerState, number: int, published: Published) -> Published:
    """Computes on rank 0 what is late and starts to send it; the other ranks go on at once. Does so only once."""
    if not published.late:
        return published
    layout = Layout.of(published.late)
    on_host, buffer = _buffers(setup, layout)
    with setup.clock.stage("svd", number):
        if setup.comm.is_root:
            setup.method.publish(state.params, published.nets, layout.views(buffer))
    with setup.clock.stage("communication", number):
        arrival = setup.comm.start_bcast(on_host.copy_(buffer))

    def take() -> None:
        published.params.update(layout.views(on_host.to(setup.data.device)))

    @cache
    def wait() -> None:
        arrival()
        if not setup.comm.is_root:
            take()

    if setup.comm.is_root:
        take()
    return replace(published, late={}, wait=wait)


def take_late(setup: Setup, published: Published, net: int) -> None:
    """Waits for what is late, if this net needs it; rank 0 has had it from the start."""
    if net in setup.method.late_nets and not setup.comm.is_root:
        published.wait()


def _buffers(setup: Setup, layout: Layout) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns room for a message on the host, and where it is written: there, or on the device of rank 0's server."""
    on_host = host_buffer(layout.num_bytes, is_pinned=setup.device.has_gpu).zero_()
    is_away = setup.comm.is_root and setup.device.server != "cpu"
    return on_host, layout.new_buffer(setup.device.server) if is_away else on_host


def _head(setup: Setup, tasks: Sequence[Task]) -> dict[str, Spec]:
    bounds = Spec((len(setup.method.state_specs()),), torch.float64)
    return {_BOUNDS: bounds, _VERSIONS: Spec((_versions_bytes(setup, tasks),), torch.uint8)}


def tested_nets(setup: Setup) -> set[int]:
    """Returns the nets that a test needs: those tested on the whole test set and, for personal tests, every tier's."""
    nets = {net.net for net in setup.method.tested()}
    if setup.personal_tests and setup.participation.tier:
        return nets | set(range(len(setup.blocks)))
    return nets | {tier for tier, count in enumerate(setup.blocks) if count} if setup.personal_tests else nets


def share_versions(setup: Setup, state: ServerState, tasks: Sequence[Task]) -> dict[int, Version]:
    """Returns the versions of these clients' memories, which rank 0 alone knows. Every rank calls it."""
    rows = _version_rows(setup, state, tasks)
    setup.comm.bcast(rows)
    return _read_versions(rows, tasks)


def _write(setup: Setup, state: ServerState, tasks: Sequence[Task], nets: Sequence[int], views: Params) -> None:
    """Writes the message: bounds, versions, and what the method publishes."""
    method = setup.method
    names = list(method.state_specs())
    magnitudes = max_magnitudes(state.params[name] for name in names).tolist()
    bad = [name for name, magnitude in zip(names, magnitudes, strict=True) if not math.isfinite(magnitude)]
    if bad:
        what = f"the server's state is not finite any more (in {', '.join(bad)}) and is not saved"
        raise DivergenceError(f"{what}; lower train.lr")
    bounds = [method.bound(name, magnitude) for name, magnitude in zip(names, magnitudes, strict=True)]
    views.pop(_BOUNDS).copy_(torch.tensor(bounds, dtype=torch.float64))
    views.pop(_VERSIONS).copy_(_version_rows(setup, state, tasks))
    method.publish(state.params, nets, views)


def _versions_bytes(setup: Setup, tasks: Sequence[Task]) -> int:
    return len(tasks) * _VERSION.itemsize if setup.method.keeps_memory else 0


def _version_rows(setup: Setup, state: ServerState, tasks: Sequence[Task]) -> torch.Tensor:
    rows = np.zeros(_versions_bytes(setup, tasks) // _VERSION.itemsize, _VERSION)
    for place in range(len(rows)):
        number, digest = state.memories.get(tasks[place].client, (-1, ""))
        rows[place] = (number, bytes.fromhex(digest))
    return torch.from_numpy(rows.view(np.uint8))


def _read_versions(rows: torch.Tensor, tasks: Sequence[Task]) -> dict[int, Version]:
    versions = {}
    for row, task in zip(rows.numpy().view(_VERSION), tasks, strict=False):
        if row["round"] >= 0:
            versions[task.client] = (int(row["round"]), bytes(row["digest"]).hex())
    return versions
