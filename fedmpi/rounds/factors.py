"""Factors that all ranks compute (`mpi.factorization: shared`), each those of some layers.

Rank 0 broadcasts the dense weights of the layers instead of their factors. Each rank factorizes the layers dealt to it,
with the same solver and number of threads as rank 0 would, so the bits are the same. One collective then adds up the
ranks' bytes as whole numbers: all but one of them are zero everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fedmpi.rounds.state import Setup
from fedmpi.tensors import Layout, Params, Spec, moved

Specs = Mapping[str, Spec]


def divided(setup: Setup, wanted: Specs) -> tuple[Specs, Specs]:
    """First the tensors that rank 0 broadcasts, then those that all ranks compute from them. Weights that serve only to
    be factorized come last in the first part. Unless `mpi.factorization` is `shared` the second part is empty.
    """
    factors = setup.method.traits.factors
    if setup.config.mpi.factorization == "root" or not (factors and factors.is_in(wanted)):
        return wanted, {}
    names, specs = set(factors.names), setup.method.state_specs()
    weights = {f"{layer}.weight": specs[f"{layer}.weight"] for layer in factors.layers}
    sent = {name: spec for name, spec in wanted.items() if name not in names} | weights
    return sent, {name: spec for name, spec in wanted.items() if name in names}


def factorized_by_all(setup: Setup, weights: Params, specs: Specs, round_number: int) -> Params:
    """The factors of these weights, on the CPU of every rank."""
    factors, comm, where = setup.method.traits.factors, setup.comm, setup.device.server
    assert factors is not None
    layout = Layout.of(specs)
    buffer = layout.new_buffer(where)
    with setup.clock.stage("svd", round_number):
        own = factors.dealt(comm.size)[comm.rank]
        names = [f"{layer}.weight" for layer in own]
        factors.write(moved({name: weights[name] for name in names}, where), layout.views(buffer), own)
    with setup.clock.stage("communication", round_number):
        buffer = buffer.cpu()
        comm.allreduce_sum(buffer.view(torch.int64))
    return layout.views(buffer)
