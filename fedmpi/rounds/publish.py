"""The broadcast: what rank 0 tells the clients, in one packed buffer.

After round t it serves both the test of round t and the clients of round t + 1, so a factorization
is computed once and never saved. With the method's tensors travel the bounds that exact sums need
and, where a method keeps client memories, the versions that the coming clients continue from.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import torch

from fedmpi.errors import DivergenceError
from fedmpi.federation.assignment import Task
from fedmpi.methods.protocol import Method
from fedmpi.rounds.factors import divided, factorized_by_all
from fedmpi.rounds.state import Published, ServerState, Setup, is_evaluated, plan_phase
from fedmpi.store.memory import Version
from fedmpi.tensors import Layout, Params, Spec, host_buffer, max_magnitudes, moved

_BOUNDS, _VERSIONS = "#bounds", "#versions"
_VERSION = np.dtype([("round", "i8"), ("digest", "V16")])


def publish(setup: Setup, state: ServerState, round_number: int, phase_number: int) -> Published:
    """Broadcasts what the coming phase's clients need and, after the last phase of a round, what its test needs."""
    method = setup.method
    phase = method.phases(round_number)[phase_number]
    plan = plan_phase(setup, round_number, phase)
    tested = phase_number == 0 and round_number > 1 and is_evaluated(setup.config, round_number - 1)
    nets = sorted({task.tier for task in plan.tasks} | (tested_nets(setup) if tested else set()))
    return replace(broadcast(setup, state, round_number, plan.tasks, nets), plan=plan)


def broadcast(
    setup: Setup, state: ServerState, round_number: int, tasks: Sequence[Task], nets: Sequence[int]
) -> Published:
    """Broadcasts these nets, and what these clients need beside them."""
    method, comm, clock = setup.method, setup.comm, setup.clock
    num_versions = len(tasks) if method.traits.keeps_memory else 0
    head = {
        _BOUNDS: Spec((len(method.state_specs()),), torch.float64),
        _VERSIONS: Spec((num_versions * _VERSION.itemsize,), torch.uint8),
    }
    wanted = method.published_specs(nets)
    sent, computed = divided(setup, wanted)
    layout = Layout.of({**head, **sent})
    on_host = host_buffer(layout.num_bytes, is_pinned=setup.device.has_gpu).zero_()
    computes_here = comm.is_root and setup.device.server != "cpu"
    buffer = layout.new_buffer(setup.device.server) if computes_here else on_host
    with clock.stage("svd" if method.traits.factors else "submodel_creation", round_number):
        if comm.is_root:
            views = layout.views(buffer)
            _write_head(method, views, state, tasks)
            method.publish(state.params, nets, views)
    with clock.stage("communication", round_number):
        buffer = on_host.copy_(buffer)  # of itself a copy is nothing
        comm.bcast(buffer)
        views = layout.views(buffer)
        bounds = dict(zip(method.state_specs(), views.pop(_BOUNDS).tolist(), strict=True))
        versions = _read_versions(views.pop(_VERSIONS), tasks)
    factors = factorized_by_all(setup, views, computed, round_number) if computed else {}
    with clock.stage("communication", round_number):
        if setup.data.device.type != "cpu":
            # Weights that were to be factorized lie behind all others, and stay on the host.
            kept = Layout.of({**head, **{name: spec for name, spec in sent.items() if name in wanted}})
            there = kept.views(buffer[: kept.num_bytes].to(setup.data.device))
            views = {name: there[name] for name in views if name in wanted}
            factors = moved(factors, setup.data.device)
    published = views | factors
    return Published({name: published[name] for name in wanted}, bounds, versions)


def tested_nets(setup: Setup) -> set[int]:
    """The nets that an evaluation needs: those tested on the whole test set and, for personal tests, every tier's."""
    nets = {net.net for net in setup.method.tested()}
    return nets | {tier for tier, count in enumerate(setup.blocks) if count} if setup.personal_tests else nets


def share_versions(setup: Setup, state: ServerState, tasks: Sequence[Task]) -> dict[int, Version]:
    """The versions of these clients' memories, of which only rank 0 knows; every rank calls it."""
    if not setup.method.traits.keeps_memory:
        return {}
    rows = torch.zeros(len(tasks) * _VERSION.itemsize, dtype=torch.uint8)
    _write_versions(rows, state, tasks)
    setup.comm.bcast(rows)
    return _read_versions(rows, tasks)


def _write_head(method: Method, views: Params, state: ServerState, tasks: Collection[Task]) -> None:
    names = list(method.state_specs())
    magnitudes = max_magnitudes(state.params[name] for name in names).tolist()
    if bad := [name for name, magnitude in zip(names, magnitudes, strict=True) if not math.isfinite(magnitude)]:
        what = f"the server's state is not finite any more (in {', '.join(bad)}) and is not saved"
        raise DivergenceError(f"{what}; lower train.lr")
    bounds = [method.bound(name, magnitude) for name, magnitude in zip(names, magnitudes, strict=True)]
    views.pop(_BOUNDS).copy_(torch.tensor(bounds, dtype=torch.float64))
    _write_versions(views.pop(_VERSIONS), state, tasks)


def _write_versions(target: torch.Tensor, state: ServerState, tasks: Collection[Task]) -> None:
    rows = np.zeros(target.numel() // _VERSION.itemsize, _VERSION)
    for place, task in enumerate(tasks) if len(rows) else ():
        number, digest = state.memories.get(task.client, (-1, ""))
        rows[place] = (number, bytes.fromhex(digest))
    target.copy_(torch.from_numpy(rows.view(np.uint8)))


def _read_versions(view: torch.Tensor, tasks: Collection[Task]) -> dict[int, Version]:
    rows = zip(view.numpy().view(_VERSION), tasks, strict=False)
    return {task.client: (int(row["round"]), bytes(row["digest"]).hex()) for row, task in rows if row["round"] >= 0}
