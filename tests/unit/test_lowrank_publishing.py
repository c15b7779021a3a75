"""Factors before a broadcast: who computes which layer where all ranks do, and that the parts make the whole."""

from __future__ import annotations

import torch
from model_inputs import randn

from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.lowrank.publishing import PublishedFactors
from fedmpi.tensors import Layout, Params

SIZES = {"a": (4, 4), "b": (10, 10), "c": (6, 8), "d": (8, 6)}
FACTORS = PublishedFactors({name: FactorizedLayer(name, *size, None) for name, size in SIZES.items()}, "gram", None)
STATE = {f"{name}.weight": randn(outputs, inputs) for name, (inputs, outputs) in SIZES.items()}


def written(*parts: set[str]) -> Params:
    """What these parts add up to, each written by itself into zeros, as whole numbers."""
    layout = Layout.of(FACTORS.specs(0.5, channels_last=False))
    total = layout.new_buffer()
    for part in parts:
        buffer = layout.new_buffer()
        FACTORS.write({f"{name}.weight": STATE[f"{name}.weight"] for name in part}, layout.views(buffer), part)
        total.view(torch.int64).add_(buffer.view(torch.int64))
    return layout.views(total)


def test_the_costliest_layer_comes_first_and_goes_to_the_rank_with_least_to_do() -> None:
    """Costs M N min(M, N) are 1000 (b), 288 (c), 288 (d) and 64 (a); equal ones in the net's order."""
    assert FACTORS.dealt(1) == [{"a", "b", "c", "d"}]
    assert FACTORS.dealt(2) == [{"b"}, {"c", "d", "a"}]
    assert FACTORS.dealt(3) == [{"b"}, {"c", "a"}, {"d"}]
    assert FACTORS.dealt(5) == [{"b"}, {"c"}, {"d"}, {"a"}, set()]


def test_parts_add_up_to_the_whole_to_the_bit() -> None:
    layout = Layout.of(FACTORS.specs(0.5, channels_last=False))
    whole = layout.views(layout.new_buffer())
    FACTORS.write(STATE, whole)
    assert set(FACTORS.names) == set(whole)
    for num_ranks in (1, 2, 3, 5):
        parts = written(*FACTORS.dealt(num_ranks))
        assert all(torch.equal(parts[name], value) for name, value in whole.items()), num_ranks
    assert not torch.equal(written({"a", "b"})["c.u.weight"], whole["c.u.weight"])
