"""The broadcast: what rank 0 tells the clients, in one packed buffer.

After round t it serves both the test of round t and the clients of round t + 1, so a factorization is computed once and
never saved. With the method's tensors travel the bounds that exact sums need and, if the method keeps client memories,
the versions that the coming clients continue from.

With `mpi.factorization: shared` rank 0 broadcasts the dense weights of the layers in place of their factors. Each rank
factorizes some layers, with rank 0's solver and number of threads, so the bits are the same. Each
factor is filled by one rank and zero on the others, so one sum of whole numbers gives every rank all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedmpi.errors import DivergenceError
from fedmpi.federation.assignment import Task
from fedmpi.rounds.state import Published, ServerState, Setup, is_evaluated, plan_phase
from fedmpi.tensors import Layout, Params, Spec, host_buffer, max_magnitudes, to_device

if TYPE_CHECKING:
    from fedmpi.store.memory import Version

_BOUNDS = "#bounds"
_VERSIONS = "#versions"
_VERSION = np.dtype([("round", "i8"), ("digest", "V16")])


def publish(setup: Setup, state: ServerState, number: int, place: int) -> Published:
    """Broadcasts what the clients of phase `place` of round `number` need.

    Before the first phase this includes what the test of the round before needs. Raises `DivergenceError` if the
    server's state is not finite.
    """
    method = setup.method
    plan = plan_phase(setup, number, method.phases(number)[place])
    nets = {task.tier for task in plan.tasks}
    if place == 0 and number > 1 and is_evaluated(setup.config, number - 1):
        nets |= tested_nets(setup)
    specs = method.published_specs(sorted(nets))
    shared, weights = _shared_factors(setup, specs)
    received = Layout.of(_head(setup, plan.tasks) | {name: specs[name] for name in specs if name not in shared})
    # Weights that are to be factorized lie behind all others, so that they can be left on the host.
    layout = Layout.of({**received.specs, **weights})
    on_host = host_buffer(layout.num_bytes, is_pinned=setup.device.has_gpu).zero_()
    buffer = layout.new_buffer(setup.device.server) if setup.comm.is_root and setup.device.server != "cpu" else on_host
    with setup.clock.stage("svd" if method.factors else "submodel_creation", number):
        if setup.comm.is_root:
            _write(setup, state, plan.tasks, sorted(nets), layout.views(buffer))
    with setup.clock.stage("communication", number):
        buffer = on_host.copy_(buffer)
        setup.comm.bcast(buffer)
    views = layout.views(buffer)
    bounds = dict(zip(method.state_specs(), views[_BOUNDS].tolist(), strict=True))
    versions = _read_versions(views[_VERSIONS], plan.tasks)
    factors = _factorize_together(setup, views, shared, number) if shared else {}
    with setup.clock.stage("communication", number):
        params = received.views(buffer[: received.num_bytes].to(setup.data.device))
        params |= to_device(factors, setup.data.device)
    return Published({name: params[name] for name in specs}, bounds, versions, plan)


def _head(setup: Setup, tasks: Sequence[Task]) -> dict[str, Spec]:
    bounds = Spec((len(setup.method.state_specs()),), torch.float64)
    return {_BOUNDS: bounds, _VERSIONS: Spec((_versions_bytes(setup, tasks),), torch.uint8)}


def _shared_factors(setup: Setup, specs: Mapping[str, Spec]) -> tuple[dict[str, Spec], dict[str, Spec]]:
    """Returns the published tensors that all ranks compute, and the weights that they compute them from.

    Both are empty unless `mpi.factorization` is `shared`.
    """
    factors = setup.method.factors
    of_state = setup.method.state_specs()
    if setup.config.mpi.factorization == "root" or not (factors and factors.is_in(specs)):
        return {}, {}
    weights = {f"{layer}.weight": of_state[f"{layer}.weight"] for layer in factors.layers}
    return {name: specs[name] for name in specs if name in factors.names}, weights


def _factorize_together(setup: Setup, weights: Params, specs: Mapping[str, Spec], number: int) -> Params:
    """Returns the factors of these weights, on the CPU of every rank."""
    factors = setup.method.factors
    assert factors is not None
    layout = Layout.of(specs)
    buffer = layout.new_buffer(setup.device.server)
    with setup.clock.stage("svd", number):
        layers = factors.layers_by_rank(setup.comm.size)[setup.comm.rank]
        own = {f"{layer}.weight": weights[f"{layer}.weight"] for layer in layers}
        factors.write(to_device(own, buffer.device), layout.views(buffer), layers)
    with setup.clock.stage("communication", number):
        buffer = buffer.cpu()
        setup.comm.allreduce_sum(buffer.view(torch.int64))
    return layout.views(buffer)


def tested_nets(setup: Setup) -> set[int]:
    """Returns the nets that a test needs: those tested on the whole test set and, for personal tests, every tier's."""
    nets = {net.net for net in setup.method.tested()}
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
