"""The broadcast before each phase (`train_round` says what it has). After round t it serves both the test of round t
and the clients of round t + 1, so a factorization is computed once and never saved.

Rank 0 computes what takes long (`Method.late`) while the others train or test nets that need none of it. Where every
net needs it, the first buffer has the server's state, too, and each rank computes a part.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

import torch

from fedmpi.errors import DivergenceError
from fedmpi.federation.assignment import Task, assign
from fedmpi.methods.protocol import Method
from fedmpi.rounds.state import Published, ServerState, Setup, is_evaluated, plan_phase
from fedmpi.tensors import Layout, Params, host_buffer, max_magnitudes, to_device

if TYPE_CHECKING:
    from fedmpi.store.memory import Version


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
    layout = Layout.of(early)
    on_host, buffer = _buffers(setup, layout)
    bounds = {}
    with setup.clock.stage("submodel_creation", number):
        if setup.comm.is_root:
            bounds = _bounds(method, state.params)
            method.publish(state.params, sorted(nets), layout.views(buffer))
    with setup.clock.stage("communication", number):
        bounds = setup.comm.bcast_object(bounds)
        versions = share_versions(setup, state, plan.tasks)
        setup.comm.bcast(on_host.copy_(buffer))
        params = layout.views(on_host.to(setup.data.device))
    return Published(params, bounds, versions, plan, sorted(nets), late)


def _bounds(method: Method, state: Params) -> dict[str, float]:
    """Returns how large each tensor of an upload may be, for exact sums."""
    names = list(method.state_specs())
    magnitudes = dict(zip(names, max_magnitudes(state[name] for name in names).tolist(), strict=True))
    bad = [name for name, magnitude in magnitudes.items() if not math.isfinite(magnitude)]
    if bad:
        what = f"the server's state is not finite any more (in {', '.join(bad)}) and is not saved"
        raise DivergenceError(f"{what}; lower train.lr")
    return {name: method.bound(name, magnitude) for name, magnitude in magnitudes.items()}


def publish_late(setup: Setup, state: ServerState, number: int, published: Published) -> Published:
    """Computes the late tensors, on rank 0 while the others go on, or on all ranks. Rank 0 starts their broadcast."""
    if not published.late:
        return published
    comm = setup.comm
    is_shared = _all_wait(setup, published.nets)
    layout = Layout.of(published.late)
    on_host, buffer = _buffers(setup, layout)
    with setup.clock.stage("svd", number):
        own = _own_part(setup, comm.size if is_shared else 1)
        views = {name: view for name, view in layout.views(buffer).items() if name in own}
        if views:
            source = state.params or to_device(published.params, setup.device.server)
            setup.method.publish(source, published.nets, views)
    with setup.clock.stage("communication", number):
        on_host.copy_(buffer)
        if is_shared:
            comm.reduce_sum(on_host.view(torch.int64))  # one rank fills in each tensor: the bits of the others are 0
        arrival = comm.start_bcast(on_host)

    @cache  # rank 0 takes the tensors at once, the others when they wait
    def take() -> None:
        published.params.update(layout.views(on_host.to(setup.data.device)))

    def wait() -> None:
        arrival()
        take()

    if comm.is_root:
        take()
    return replace(published, late={}, wait=wait)


def _own_part(setup: Setup, num_ranks: int) -> set[str]:
    """Returns the late tensors that this rank computes, if so many ranks compute some."""
    costs = setup.method.late
    groups = list(costs)
    tasks = [Task(place, 0, 0, "", 0, costs[names]) for place, names in enumerate(groups)]
    own = assign(tasks, range(num_ranks), setup.comm.size).by_rank[setup.comm.rank]
    return {name for task in own for name in groups[task.client]}


def _all_wait(setup: Setup, nets: Collection[int]) -> bool:
    """Returns whether no net can do without what is late and takes long, so that all ranks compute parts of it.

    False if rank 0 factorizes on a GPU, because its bits differ from a CPU's. All ranks know the kind of its device.
    """
    method = setup.method
    is_on_cpu = setup.computed_with["server_device"] == "cpu"
    return is_on_cpu and any(method.late.values()) and method.late_nets.issuperset(nets)


def take_late(setup: Setup, published: Published, net: int) -> None:
    """Waits for what is late, if this net needs it; rank 0 has had it from the start."""
    if net in setup.method.late_nets and not setup.comm.is_root:
        published.wait()


def _buffers(setup: Setup, layout: Layout) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns room for a message on the host, and where it is written: there, or on the device of rank 0's server."""
    on_host = host_buffer(layout.num_bytes, is_pinned=setup.device.has_gpu).zero_()
    is_away = setup.comm.is_root and setup.device.server != "cpu"
    return on_host, layout.new_buffer(setup.device.server) if is_away else on_host


def tested_nets(setup: Setup) -> set[int]:
    """Returns the nets that a test needs: those tested on the whole test set and, for personal tests, every tier's."""
    nets = {net.index for net in setup.method.tested()}
    if setup.personal_tests:
        chosen = setup.participation
        nets |= {tier for tier, count in enumerate(chosen.blocks) if count or chosen.of_device}
    return nets


def share_versions(setup: Setup, state: ServerState, tasks: Sequence[Task]) -> dict[int, Version]:
    """Returns the versions of these clients' memories, which rank 0 alone knows. Every rank calls it."""
    versions = {task.client: state.memories[task.client] for task in tasks if task.client in state.memories}
    return setup.comm.bcast_object(versions) if setup.method.keeps_memory else {}
