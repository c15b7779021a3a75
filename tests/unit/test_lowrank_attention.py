"""Attention of low rank: queries, keys, values and outputs are a matrix each, factorized, counted and run as such."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_runs import finished, run_all, small_config, small_setup
from torch import Tensor, nn

from fedmpi import costs
from fedmpi.data.options import DataInfo
from fedmpi.lowrank.decay import frobenius_decay_
from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.lowrank.kernels import Kernels, kernel_net
from fedmpi.lowrank.lifting import factorize, lift
from fedmpi.lowrank.modules import LowRank, factorize_net
from fedmpi.lowrank.rule import Rule, plan_layers
from fedmpi.models import create
from fedmpi.models.nets.vit_options import VitSmall
from fedmpi.mpi.serial import SerialComm
from fedmpi.store import checkpoint
from fedmpi.store.run_dir import RunDir

IMAGES = DataInfo("image", (3, 8, 8), 5, 1, 1)
D, HIDDEN, DEPTH, TOKENS = 24, 96, 2, 5
SMALL = VitSmall(embedding=D, heads=3, depth=DEPTH)
RUN = ("model.name=vit_small", "model.embedding=12", "model.heads=2", "model.depth=1")
ATTENTION = "encoder.layers.encoder_layer_0.self_attention"
OF_A_BLOCK = (
    "self_attention.query", "self_attention.key", "self_attention.value", "self_attention.out", "mlp.0", "mlp.3",
)  # fmt: skip


def net() -> nn.Module:
    """With values that show every entry, biases included."""
    built, generator = create.build(SMALL, IMAGES, 0), torch.Generator().manual_seed(1)
    for parameter in built.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return built


def batch() -> Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def planned(dense: nn.Module, **rule: object) -> tuple[FactorizedLayer, ...]:
    return plan_layers(dense, Rule(**rule))


def loaded(low: nn.Module, dense: nn.Module, layers: tuple[FactorizedLayer, ...], ratio: float = 1.0) -> nn.Module:
    """The factors of the dense net's weights, at full rank or at this ratio, in a factorized copy."""
    for layer in layers:
        place, weight = low.get_submodule(layer.name), dense.get_parameter(f"{layer.name}.weight").detach()
        r = min(layer.matrix_shape) if ratio == 1 else layer.r(ratio)
        for half, factor in zip((place.u, place.v), factorize(layer, weight, r), strict=True):
            with torch.no_grad():
                half.weight.copy_(factor)
    return low


def test_six_matrices_of_a_block_are_factorized() -> None:
    """Not the patches (the stem) and not the classifier (the last linear layer)."""
    names = [f"encoder.layers.encoder_layer_{block}.{name}" for block in range(DEPTH) for name in OF_A_BLOCK]
    assert [layer.name for layer in planned(create.skeleton(SMALL, IMAGES))] == names


@pytest.mark.parametrize("gamma", [0.5, 0.25, 0.125])
def test_each_matrix_has_r_times_m_plus_n_numbers(gamma: float) -> None:
    """r = gamma n: four d x d matrices, d x 4 d with r of its 4 d outputs, but at most the full rank d, and 4 d x d."""
    dense = create.skeleton(SMALL, IMAGES)
    low = factorize_net(dense, planned(dense), gamma)
    r, inside = round(gamma * D), min(D, round(gamma * HIDDEN))
    saved = DEPTH * (4 * D * D + 2 * D * HIDDEN - 4 * r * (D + D) - (inside + r) * (D + HIDDEN))
    assert sum(p.numel() for p in low.parameters()) == sum(p.numel() for p in dense.parameters()) - saved


def test_vit_small_at_a_quarter() -> None:
    """12 blocks of 4 * 96 * 768 + (384 + 96) * 1920 = 1,216,512 instead of 1,769,472: 14,706,826 of 21,342,346."""
    dense = create.skeleton(VitSmall(), DataInfo("image", (3, 32, 32), 10, 1, 1))
    low = factorize_net(dense, planned(dense), 0.25)
    assert sum(p.numel() for p in low.parameters()) == 21_342_346 - 12 * (1_769_472 - 1_216_512) == 14_706_826


def test_at_full_rank_the_net_is_the_dense_one() -> None:
    """FedHM's factors and PriSM's kernels; what is lifted is the weight."""
    dense = net()
    layers = planned(dense, overrides={"*": 10**6})
    low = loaded(factorize_net(dense, layers, 0.5), dense, layers)
    assert {"conv_proj", "heads.head", f"{ATTENTION}.query"} <= {layer.name for layer in layers}
    kernels = planned(dense, unroll="output")
    sizes = {layer.name: (min(layer.matrix_shape), layer.out_features) for layer in kernels}
    drawn = loaded(kernel_net(dense, sizes), dense, kernels)
    for other in (low, drawn):
        torch.testing.assert_close(other(batch()), dense(batch()), rtol=1e-5, atol=1e-5)
    for layer in layers:
        place = low.get_submodule(layer.name)
        back = lift(layer, place.u.weight, place.v.weight)
        torch.testing.assert_close(back, dense.get_parameter(f"{layer.name}.weight"), rtol=1e-5, atol=1e-5)


def test_truncated_it_is_the_dense_net_of_the_truncated_matrices() -> None:
    """Rank 3 in every layer: the same outputs from dense layers that hold the products."""
    dense = net()
    layers = planned(dense, overrides={"encoder*": 3})
    low = loaded(factorize_net(dense, layers, 0.5), dense, layers, 0.5)
    outputs = low(batch())
    with torch.no_grad():
        for layer in layers:
            place = low.get_submodule(layer.name)
            assert isinstance(place, LowRank) and torch.linalg.matrix_rank(place.weight) == 3
            dense.get_parameter(f"{layer.name}.weight").copy_(place.v.weight @ place.u.weight)
    torch.testing.assert_close(outputs, dense(batch()), rtol=1e-4, atol=1e-5)


def test_rows_that_a_client_does_not_hold_are_zero() -> None:
    """PriSM, q = 7 rows of 24: one head of 8 numbers but for its last; the biases stay."""
    dense = net()
    layers = planned(dense, unroll="output")
    part = kernel_net(dense, {layer.name: (min(layer.matrix_shape), 7) for layer in layers})
    with torch.no_grad():
        for layer in layers:
            place = part.get_submodule(layer.name)
            assert isinstance(place, Kernels)
            weight = dense.get_parameter(f"{layer.name}.weight")
            u, v = factorize(layer, weight, min(layer.matrix_shape))
            place.u.weight.copy_(u)
            place.v.weight.copy_(v[:7])
            weight[7:] = 0
    torch.testing.assert_close(part(batch()), dense(batch()), rtol=1e-4, atol=1e-5)


def test_frobenius_decay_reaches_the_queries() -> None:
    """As autograd of lambda/2 |U V|^2."""
    dense = net()
    layers = planned(dense)
    low = loaded(factorize_net(dense, layers, 0.25), dense, layers, 0.25)
    place = low.get_submodule(f"{ATTENTION}.query")
    (0.05 * (place.v.weight @ place.u.weight).square().sum()).backward()
    ours = [torch.zeros_like(half.weight) for half in (place.u, place.v)]
    frobenius_decay_(place.u.weight, place.v.weight, *ours, 0.1)
    for grad, half in zip(ours, (place.u, place.v), strict=True):
        torch.testing.assert_close(grad, half.weight.grad, rtol=1e-4, atol=1e-6)


def test_low_rank_saves_computation_too() -> None:
    """MACs by hand at gamma 1/4: r = 6 in d x d layers, 24 and 6 in the perceptron; products of tokens stay whole."""
    dense = create.skeleton(SMALL, IMAGES)
    low = factorize_net(dense, planned(dense), 0.25)
    block = TOKENS * (4 * 6 * 2 * D + (24 + 6) * (D + HIDDEN)) + 2 * TOKENS * TOKENS * D
    assert costs.measure(low, (3, 8, 8)).macs == (TOKENS - 1) * 48 * D + DEPTH * block + D * 5


def test_low_rank_trains_in_bfloat16() -> None:
    dense = net()
    layers = planned(dense)
    low = loaded(factorize_net(dense, layers, 0.25), dense, layers, 0.25)
    with torch.autocast("cpu", torch.bfloat16):
        logits = low(batch())
        torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2, 3])).backward()
    assert logits.dtype is torch.bfloat16
    assert all(parameter.grad.any() and parameter.grad.isfinite().all() for parameter in low.parameters())
    torch.testing.assert_close(logits.float(), low(batch()), rtol=0.1, atol=0.1)


# In methods.


def test_fedhm_at_full_rank_is_fedavg_to_the_bit(tmp_path: Path) -> None:
    """All clients dense: the same server state, names included, and the same records."""
    runs = []
    for method in (("method.name=fedhm", "method.rank_ratio=[1]"), ("method.name=fedavg",)):
        folder = tmp_path / method[0]
        run_all(small_config(*RUN, *method, "rounds=2"), SerialComm(), folder)
        runs.append(finished(folder))
    assert runs[0].server == runs[1].server
    assert [record["tiers"] for record in runs[0].records] == [record["tiers"] for record in runs[1].records]


@pytest.mark.parametrize(
    ("method", "ratios", "factors"),
    [("fedhm", "rank_ratio", ("weight",)), ("orthdrop", "keep_ratio", ("u.weight", "v.weight"))],
)
def test_a_round_moves_every_matrix(tmp_path: Path, method: str, ratios: str, factors: tuple[str, ...]) -> None:
    """Clients of low rank alone, in bfloat16; no BatchNorm, so nothing is re-estimated. The server's state has the
    dense net's names in FedHM, and factors in OrthDrop."""
    overrides = (
        *RUN,
        f"method.name={method}",
        f"method.{ratios}=[0.5,0.25]",
        "train.precision=bf16",
        "evaluation.bn=restat",
        "rounds=1",
    )
    before = small_setup(tmp_path / "before", *overrides).method.initial_state()
    run_all(small_config(*overrides), SerialComm(), tmp_path / "run")
    snapshot = checkpoint.load_newest_intact(RunDir(tmp_path / "run"), print)
    assert snapshot is not None
    names = [f"{ATTENTION}.{part}.{kind}" for part in ("query", "key", "value", "out") for kind in (*factors, "bias")]
    assert sorted(name for name in before if name.startswith(ATTENTION)) == sorted(names)
    for name in names:
        # A bias of the keys adds the same to all products of a query: softmax, and so the gradient, ignores it.
        if name != f"{ATTENTION}.key.bias":
            assert not torch.equal(torch.as_tensor(snapshot.server[name]), before[name]), name
