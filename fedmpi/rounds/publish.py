"""The broadcast: what rank 0 tells the clients, in one packed buffer, or in two.

After round t it serves both the test of round t and the clients of round t + 1, so a factorization is computed once and
never saved. With the method's tensors travel the bounds that exact sums need and, if the method keeps client memories,
the versions that the coming clients continue from.

Tensors that take long to compute (`Method.late`) follow in a second buffer. Rank 0 computes it while the others train
or test nets that need none of it; each of them takes it when it comes to the first net that does. Where every net needs
it, the first buffer has the server's state, too, and each rank computes a part.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedmpi.errors import DivergenceError
from fedmpi.federation.assignment import Task, assign
from fedmpi.rounds.state import Published, ServerState, Setup, is_evaluated, plan_phase
from fedmpi.tensors import Layout, Params, Spec, host_buffer, max_magnitudes, to_device

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
    late = {name: specs[name] for name in chain.from_iterable(method.late) if name in specs}
    early = {name: specs[name] for name in specs if name not in late}
    if late and _all_wait(setup, nets):
        early |= method.state_specs()
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
    """Computes what is late and starts to send it, once: rank 0 alone, while the others go on, or all together."""
    if not published.late:
        return published
    parts = _parts(setup, published)
    layout = Layout.of({name: spec for part in parts for name, spec in part.specs.items()})
    on_host = _computed(setup, state, number, published, parts, layout)
    with setup.clock.stage("communication", number):
        arrival = setup.comm.start_bcast(on_host)

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


def _all_wait(setup: Setup, nets: Collection[int]) -> bool:
    """Returns whether no net can do without what is late and takes long, so that all ranks compute parts of it.

    Not where rank 0 has a GPU for it, whose bits are others; all ranks know its kind, whatever device is their own.
    """
    method = setup.method
    is_on_cpu = setup.computed_with["server_device"] == "cpu"
    return is_on_cpu and any(method.late.values()) and method.late_nets.issuperset(nets)


def _parts(setup: Setup, published: Published) -> list[Layout]:
    """Returns the late tensors that each rank computes."""
    comm = setup.comm
    costs = setup.method.late
    groups = list(costs)
    tasks = [Task(place, 0, 0, "", 0, costs[names]) for place, names in enumerate(groups)]
    parts = []
    for own in assign(tasks, range(comm.size if _all_wait(setup, published.nets) else 1), comm.size).by_rank:
        parts.append(Layout.of({name: published.late[name] for task in own for name in groups[task.client]}))
    return parts


def _computed(
    setup: Setup, state: ServerState, number: int, published: Published, parts: Sequence[Layout], layout: Layout
) -> torch.Tensor:
    """Returns a buffer of `layout`, on rank 0 with what is late."""
    rank = setup.comm.rank
    num_bytes = [part.num_bytes for part in parts]
    own = slice(sum(num_bytes[:rank]), sum(num_bytes[: rank + 1]))
    on_host, buffer = _buffers(setup, layout)
    with setup.clock.stage("svd", number):
        if num_bytes[rank]:
            source = state.params or to_device(published.params, setup.device.server)
            setup.method.publish(source, published.nets, parts[rank].views(buffer[own]))
    with setup.clock.stage("communication", number):
        on_host.copy_(buffer)
        if _all_wait(setup, published.nets):
            setup.comm.start_gather(on_host[own], [0, *num_bytes[1:]], on_host[num_bytes[0] :])()
    return on_host


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
    nets = {net.index for net in setup.method.tested()}
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
