"""What PriSM's nets hold and cost: methods.md 5.8 and 5.9-6, the paper's Table 1; its options; what clients draw."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from model_inputs import params
from narrow_nets import context, context_of
from torch import Tensor, nn

from fedmpi.config.schema import Train
from fedmpi.errors import ConfigError
from fedmpi.federation.assignment import Task
from fedmpi.lowrank import kernels as kernels_module
from fedmpi.methods.prism import SIGMA, OrthDropOptions, Prism, PrismOptions
from fedmpi.methods.values import Client, Turn
from fedmpi.models.options import LstmImdb, Mlp, ModelOptions, ResNet18, Vgg16

IMAGES = SimpleNamespace(kind="image", example_shape=(3, 32, 32), num_classes=10)
TOKENS = SimpleNamespace(kind="tokens", example_shape=(20,), num_classes=2, vocabulary_size=30)
RATIOS = (0.8, 0.6, 0.4, 0.2)


def prism(model: ModelOptions, info: SimpleNamespace = IMAGES, **options: object) -> Prism:
    return Prism(context_of(PrismOptions(**options), model, info, train=Train(weight_decay=2e-4)))


def test_what_a_client_of_resnet18_holds() -> None:
    """methods.md 5.9-6: 9.88, 7.30, 4.82 and 2.46 million parameters. 16 convs are low-rank, each of r = q =
    ceil(c N) as r M 9 + q r; stem 1,728, shortcuts 172,032, BatchNorm 9,600 and classifier 5,130 are whole."""
    method = prism(ResNet18(), keep_ratio=RATIOS)
    assert len(method.factorized) == 16
    nets = [method.net(tier, empty=True) for tier in range(4)]
    assert [params(net) for net in nets] == [9_882_946, 7_302_210, 4_818_946, 2_460_418]
    assert [method.costs(Turn(tier)).down_bytes for tier in range(4)] == [4 * params(net) for net in nets]
    large = dict(nets[0].named_parameters())
    differing = {name for name, value in nets[3].named_parameters() if value.shape != large[name].shape}
    assert differing == {f"{layer.name}.{half}.weight" for layer in method.factorized for half in "uv"}


def test_o2_has_twice_the_rows() -> None:
    plain, o2 = (prism(ResNet18(), keep_ratio=(0.2,), o2=o2).net(0, empty=True) for o2 in (False, True))
    for layer, r in (("stages.0.0.conv1", 13), ("stages.3.1.conv2", 103)):
        assert plain.get_parameter(f"{layer}.v.weight").shape[:2] == (r, r)
        assert o2.get_parameter(f"{layer}.v.weight").shape[:2] == (2 * r, r)
        assert plain.get_parameter(f"{layer}.u.weight").shape == o2.get_parameter(f"{layer}.u.weight").shape
    whole = prism(ResNet18(), keep_ratio=(0.6,), o2=True).net(0, empty=True)
    assert whole.get_parameter("stages.0.0.conv1.v.weight").shape[:2] == (64, 39)


def table_1(share: float, stem: float = 64) -> tuple[float, float, float]:
    """Params, 2 MACs 32 and Mem of the 16 block convs, r = q = c N unrounded (methods.md 5.8).

    u of r x m x 9, where m is c M but the whole stem for the first; v of r x r; outputs of u, v and
    BatchNorm. At share 1 of the dense convs."""
    params = macs = memory = 0.0
    inputs = stem
    for stage, side in enumerate((32, 16, 8, 4)):
        for _ in range(4):
            r = share * stem * 2**stage
            size = 9 * r * inputs + (r * r if share < 1 else 0)
            params, macs = params + size, macs + 64 * size * side**2
            memory += 32 * (3 if share < 1 else 2) * r * side**2
            inputs = r
    return params, macs, memory


PRINTED = {1: (11, 35, 31.5), 0.8: (7.9, 25.5, None), 0.6: (4.5, 14.7, 28.3), 0.4: (2, 6.87, 18.9), 0.2: (0.5, 2, 9.5)}


@pytest.mark.parametrize("share", PRINTED)
def test_table_1_as_printed(share: float) -> None:
    """To the digits printed, and 0.07 for those that the paper cut rather than rounded (25.56 G as 25.5 G, 9.44 M
    as 9.5 M). Its 37 M of Mem at 0.8 is not what the other four follow, which would be 37.7."""
    for found, printed, unit in zip(table_1(share), PRINTED[share], (1e6, 1e9, 1e6), strict=True):
        assert printed is None or found / unit == pytest.approx(printed, abs=0.07)


def measured(net: nn.Module, layers: Sequence[str]) -> tuple[int, int, int]:
    """The same three of a net on meta: of these layers and of what normalizes them."""
    params = macs = memory = 0

    def count(module: nn.Module, inputs: object, output: Tensor) -> None:
        nonlocal params, macs, memory
        memory += 32 * output[0].numel()
        if isinstance(module, nn.Conv2d):
            params += module.weight.numel()
            macs += 64 * module.weight.numel() * output[0, 0].numel()

    for layer in layers:
        block, _, conv = layer.rpartition(".")
        for name in (f"{layer}.u", f"{layer}.v", f"{block}.{conv.replace('conv', 'bn')}"):
            net.get_submodule(name).register_forward_hook(count)
    net(torch.empty(2, 3, 32, 32, device="meta"))
    return params, macs, memory


@pytest.mark.parametrize("share", RATIOS)
def test_table_1_of_the_net_that_is_built(share: float) -> None:
    """Exactly, at a width whose channels (80, 160, ...) all four ratios divide without rest. At the paper's width r is
    rounded up: 12.8 to 13, 25.6 to 26 ..., at most 1.6 % each, so 3.2 % of r^2, and 0.2 % of 51.2 to 52."""
    for width, slack in ((1.25, 0.0), (1.0, 0.035)):
        method = prism(ResNet18(width=width), keep_ratio=(share,), cut_inputs=True)
        layers = [layer.name for layer in method.factorized]
        for found, exact in zip(measured(method.net(0, empty=True), layers), table_1(share, 64 * width), strict=True):
            assert exact * (1 - 1e-12) <= found <= exact * (1 + slack + 1e-12)


@pytest.mark.parametrize("model", [ResNet18(blocks=(1, 1), width=0.25), Vgg16(width=0.1), Mlp()])
def test_the_cut_net_is_smaller_and_runs(model: ModelOptions) -> None:
    whole, cut = (prism(model, keep_ratio=(0.4,), cut_inputs=cut_inputs) for cut_inputs in (False, True))
    assert params(cut.net(0, empty=True)) < params(whole.net(0, empty=True)) < params(whole.net(1, empty=True))
    assert cut.net(0, empty=True)(torch.empty(2, 3, 32, 32, device="meta")).shape == (2, 10)
    stem = next((n for n, m in cut.net(1, empty=True).named_modules() if isinstance(m, nn.Conv2d)), None)
    assert stem is None or cut.net(0, empty=True).get_submodule(stem).out_channels == 64 * model.width // 1


@pytest.mark.parametrize("model", [ResNet18(blocks=(2, 1), width=0.125), Mlp(hidden=(20, 10))])
def test_the_cut_net_is_the_leading_part_of_the_whole_one(model: ModelOptions) -> None:
    """Its outputs are those of the dense net that has its weights, kernels multiplied back, as the leading entries of
    every tensor and zeros elsewhere: nothing then reads the channels that the residual stream has lost."""
    method = prism(model, keep_ratio=(0.4,), cut_inputs=True)
    cut, wide, generator = method.net(0), method.context.make(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in cut.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter[0].numel() ** 0.5)
        for name, parameter in wide.named_parameters():
            layer, _, kind = name.rpartition(".")
            weight = getattr(cut.get_submodule(layer), kind)
            parameter.zero_()[tuple(map(slice, weight.shape))] = weight
        images = torch.randn(4, 3, 32, 32, generator=generator) * torch.arange(1.0, 5.0).view(4, 1, 1, 1)
        outputs = cut(images)
        torch.testing.assert_close(outputs, wide(images), rtol=0, atol=1e-4)
    assert float(outputs.std(0).min()) > 1e-2


@pytest.mark.parametrize(
    ("model", "info", "reason"),
    [(ResNet18(order="pre"), IMAGES, "PreBlock has no identity"), (LstmImdb(), TOKENS, "an LSTM")],
)
def test_nets_that_cannot_be_cut(model: ModelOptions, info: SimpleNamespace, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"method.cut_inputs.*{reason}"):
        prism(model, info, cut_inputs=True)


# Options.


def test_two_tiers_are_40_and_60_percent() -> None:
    assert [PrismOptions().tier_blocks(n) for n in (100, 20, 8)] == [(40, 60), (8, 12), (3, 5)]
    assert PrismOptions(keep_ratio=(0.8, 0.4, 0.2)).tier_blocks(9) == (3, 3, 3)
    assert OrthDropOptions(keep_ratio=(0.2,)).tier_blocks(7) == (7,)


def test_kappa_is_4_for_the_smallest() -> None:
    assert PrismOptions(keep_ratio=(0.8, 0.4, 0.2, 0.1)).kappas == (2.5, 2.5, 4.0, 4.0)
    assert PrismOptions(kappa=(1.0, 0.0)).kappas == (1.0, 0.0)


def test_frobenius_decay_is_the_weight_decay_unless_given() -> None:
    assert [prism(ResNet18(), **given).lambda_ for given in ({}, {"frobenius_decay": 0.5})] == [2e-4, 0.5]


def test_lstm_is_low_rank_gate_by_gate() -> None:
    """16 matrices, input and recurrent apart; at full rank the net of the initial state is the dense one. At 0.2 a
    gate of 256 x 64 has r = 13 kernels and q = 52 rows, one of 256 x 256 52 and 52."""
    method = prism(LstmImdb(), TOKENS, keep_ratio=(0.2,))
    assert [layer.name for layer in method.factorized][3:5] == ["lstm.ih_l0.o", "lstm.hh_l0.i"]
    sub = {name: tuple(p.shape) for name, p in method.net(0, empty=True).named_parameters()}
    assert len(method.factorized) == 16
    assert (sub["lstm.ih_l0.f.u.weight"], sub["lstm.ih_l0.f.v.weight"]) == ((13, 64), (52, 13))
    assert (sub["lstm.hh_l1.o.u.weight"], sub["lstm.hh_l1.o.v.weight"]) == ((52, 256), (52, 52))
    assert sub["lstm.bias_ih_l0"] == (1024,) and sub["embedding.weight"] == (30, 64) and sub["fc.weight"] == (1, 256)
    small = prism(LstmImdb(width=0.0625), TOKENS)
    dense, whole, state = small.context.make(), small.net(2), small.initial_state()
    with torch.no_grad():
        small.narrow(state, 2, dict(whole.named_parameters()))
    tokens = torch.randint(30, (3, 20), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(whole(tokens), dense(tokens), rtol=0, atol=1e-5)


# Which kernels clients draw: by each layer's published sigma, their tier's kappa and a seed of their own.


def drawing_prism(sizes: Iterable[int], keep_ratio: tuple[float, ...], kappa: tuple[float, ...]) -> Prism:
    """Of a net of linear layers between these sizes, all but the last low-rank."""
    sizes = tuple(sizes)

    def make() -> nn.Module:
        return nn.Sequential(*(nn.Linear(m, n) for m, n in pairwise(sizes)))

    return Prism(context(PrismOptions(keep_ratio=keep_ratio, kappa=kappa), make))


def client_with(number: int, tier: int, sigma: list[float]) -> Client:
    return Client(Task(number, tier, 3, "train", 1, 1.0), {SIGMA: torch.tensor(sigma)}, np.arange(1), 7)


def test_what_kernels_are_drawn_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of R = 4 and R = 3 kernels; r = ceil(c R) of 0.75, 0.5 and 0.25. Sigma as published, layer by layer."""
    method = drawing_prism((4, 4, 3, 2), (0.75, 0.5, 0.25), (1.5, 0.0, 4.0))
    draw, seen = kernels_module.draw_kernels, []

    def recorded(sigma: tuple[Tensor, ...], sizes: list[int], kappa: float, generator: torch.Generator) -> list[Tensor]:
        seen.append(([values.tolist() for values in sigma], sizes, kappa, generator.get_state().tolist()))
        return draw(sigma, sizes, kappa, generator)

    monkeypatch.setattr(kernels_module, "draw_kernels", recorded)
    clients = [client_with(10 + tier, tier, [9, 7, 5, 3, 8, 4, 2]) for tier in range(3)]
    for client in clients:
        method.regions(client)
    states = [client.generator("kernels").get_state().tolist() for client in clients]
    values = [[9, 7, 5, 3], [8, 4, 2]]
    assert seen == [
        (values, [3, 3], 1.5, states[0]),
        (values, [2, 2], 0.0, states[1]),
        (values, [1, 1], 4.0, states[2]),
    ]
    assert states[0] != states[1] != states[2]


def test_a_client_gets_the_kernels_that_it_draws() -> None:
    """Kernel 2 of the first layer and 1 of the second outweigh the others a million times; of v the first row's."""
    method = drawing_prism((4, 4, 3, 2), (0.25,), (2.5,))
    client = client_with(0, 0, [1, 1, 1e6, 1, 1, 1e6, 1])
    state = {n: torch.arange(float(spec.num_elements)).view(spec.shape) for n, spec in method.state_specs().items()}
    out = {name: torch.zeros_like(value) for name, value in method.net(0).named_parameters()}
    method.narrow({**state, SIGMA: client.published[SIGMA]}, 0, out, client)
    for layer, kernel in (("0", 2), ("1", 1)):
        assert torch.equal(out[f"{layer}.u.weight"], state[f"{layer}.u.weight"][kernel : kernel + 1])
        assert out[f"{layer}.v.weight"].tolist() == [[float(state[f"{layer}.v.weight"][0, kernel])]]
