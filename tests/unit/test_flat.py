"""A net in flat buffers trains as an ordinary one: SGD, decay groups, momentum, several nets in the same memory."""

import copy

import pytest
import torch
from torch import Tensor, nn

from fedmpi.config.schema import Train
from fedmpi.learning.flat import Buffers, FlatNet, net_layout
from fedmpi.methods.protocol import copy_into
from fedmpi.strided import subsample_before_narrow_convs
from fedmpi.tensors import bytes_of

OWN = ("conv.weight", "head.weight")


class Net(nn.Module):
    """Odd sizes, so that every tensor is padded; a BatchNorm and a missing bias, as ResNets have."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width, track_running_stats=False)
        self.head = nn.Linear(width, 7)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.conv(images))).mean((2, 3)))


def seeded(width: int = 5) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(width)
        return Net(width)


def flat_twin(
    net: nn.Module, own: object = (), buffers: Buffers | None = None, *, channels_last: bool = False
) -> FlatNet:
    """The same net, with the same values, in flat buffers."""
    values = {name: value.detach().clone() for name, value in net.named_parameters()}
    layout = net_layout(values.items(), own, channels_last=channels_last)
    twin = FlatNet(seeded(net.conv.out_channels), layout, buffers or Buffers(layout.num_bytes, "cpu"))
    copy_into(twin.params, values)
    return twin


def plain_sgd(net: Net, own: object, momentum: float, weight_decay: float) -> torch.optim.SGD:
    """torch's own optimizer on an ordinary module, with the two groups as anybody would write them."""
    groups = [
        {"params": [p for name, p in net.named_parameters() if (name in own) == owned], "weight_decay": decay}
        for owned, decay in ((False, weight_decay), (True, 0.0))
    ]
    return torch.optim.SGD([g for g in groups if g["params"]], lr=1.0, momentum=momentum)


def names_of(own: object) -> tuple[str, ...]:
    return tuple(name for name, _ in Net().named_parameters()) if own == "all" else own


def set_gradients(net: Net, flat: FlatNet, step: int) -> None:
    """Small whole numbers: with rates that are powers of 2, every step of SGD is then exact in float32."""
    for place, (name, parameter) in enumerate(net.named_parameters()):
        count = torch.arange(parameter.numel()).view(parameter.shape)
        parameter.grad = ((count * (3 + place) + step * 5) % 17 - 8).float()
        flat.grads[name].copy_(parameter.grad)


def equal(net: Net, flat: FlatNet) -> bool:
    return all(torch.equal(value, flat.params[name]) for name, value in net.named_parameters())


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("own", [(), OWN, "all"])
def test_sgd_is_torch_s_to_the_bit_where_arithmetic_is_exact(own: object, channels_last: bool) -> None:
    """Values in eighths, gradients whole, lr = momentum = decay = 1/4: after 4 steps at most 3 + 4 * 4 binary
    places are needed, so float32 rounds nothing and any correct SGD gives the same bits."""
    own, net = names_of(own), seeded()
    with torch.no_grad():
        for value in net.parameters():
            value.copy_((value * 8).round() / 8)
    flat = flat_twin(net, own, channels_last=channels_last)
    ours = flat.optimizer(Train(momentum=0.25, weight_decay=0.25), own)
    theirs = plain_sgd(net, own, 0.25, 0.25)
    for group in theirs.param_groups:
        group["lr"] = 0.25
    for step in range(4):
        set_gradients(net, flat, step)
        before = flat.params["conv.weight"].clone()
        ours(0.25)
        theirs.step()
        assert equal(net, flat) and not torch.equal(flat.params["conv.weight"], before)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("own", [(), OWN, "all"])
def test_adamw_is_torch_s_to_rounding(own: object, channels_last: bool) -> None:
    """Four steps of both groups; after a reset a client begins as another did, though the buffers were used."""
    own, net = names_of(own), seeded()
    values = {name: value.detach().clone() for name, value in net.named_parameters()}
    layout = net_layout(values.items(), own, channels_last=channels_last)
    flat = flat_twin(net, own, Buffers(layout.num_bytes, "cpu", squares=True), channels_last=channels_last)
    ours = flat.optimizer(Train(optimizer="adamw", weight_decay=0.25), own)
    for _ in range(2):
        groups = [{**group, "lr": 0.125} for group in plain_sgd(net, own, 0.0, 0.25).param_groups]
        groups = [{"params": g["params"], "lr": g["lr"], "weight_decay": g["weight_decay"]} for g in groups]
        theirs = torch.optim.AdamW(groups)
        for step in range(4):
            set_gradients(net, flat, step)
            ours(0.125)
            theirs.step()
            for name, value in net.named_parameters():
                assert torch.allclose(flat.params[name], value, rtol=1e-6, atol=1e-6), name
        flat.reset_momentum()
        with torch.no_grad():
            for name, value in net.named_parameters():
                value.copy_(values[name])
        copy_into(flat.params, values)


def test_one_parameter_by_hand() -> None:
    """x = 1, gradient 1 twice, lr and momentum 1/2, decay 1/4: v = 1.25, x = 0.375; v = 0.625 + 1.09375, x = -0.484375.

    Without decay, as in the group of `own_decay`: v = 1, x = 0.5; v = 1.5, x = -0.25.
    """
    values = {"a": torch.ones(1), "b": torch.ones(1)}
    module = nn.Module()
    module.a, module.b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    layout = net_layout(values.items(), ("a",), channels_last=False)
    net = FlatNet(module, layout, Buffers(layout.num_bytes, "cpu"))
    copy_into(net.params, values)
    sgd = net.optimizer(Train(momentum=0.5, weight_decay=0.25), ("a",))
    seen = []
    for _ in range(2):
        net.grads["a"].fill_(1.0)
        net.grads["b"].fill_(1.0)
        sgd(0.5)
        seen.append((net.params["a"].item(), net.params["b"].item()))
    assert seen == [(0.5, 0.375), (-0.25, -0.484375)]


def test_padding_stays_zero() -> None:
    """Momentum, decay and all: otherwise the bytes of a message would hold what no tensor owns."""
    flat = flat_twin(net := seeded(), OWN)
    buffers = [bytes_of(vector) for vector in (flat.parameter, flat.gradient, flat._momentum)]
    sgd = flat.optimizer(Train(momentum=0.9, weight_decay=0.1), OWN)
    for _ in range(3):
        flat.gradient.zero_()
        flat.module(torch.rand(4, 3, 6, 6, generator=torch.Generator().manual_seed(1))).square().sum().backward()
        sgd(1.0)
    is_padding = torch.ones(flat.layout.num_bytes, dtype=torch.bool)
    for name, spec in flat.layout.specs.items():
        is_padding[flat.layout.offsets[name] : flat.layout.offsets[name] + spec.nbytes] = False
    assert is_padding.sum() > 0 and not equal(net, flat)
    assert not any(buffer[is_padding].any() for buffer in buffers)
    assert all(buffer[~is_padding].any() for buffer in buffers)


def test_nets_of_several_tiers_share_buffers() -> None:
    """Wide and narrow take turns, as clients of two tiers do; each trains as if it were alone."""
    nets = {width: seeded(width) for width in (5, 2)}
    buffers = Buffers(flat_twin(nets[5]).layout.num_bytes, "cpu")
    shared = {width: flat_twin(net, buffers=buffers) for width, net in nets.items()}
    images = torch.rand(4, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    for width in (5, 2, 5, 2, 2):
        alone = flat_twin(nets[width])
        copy_into(shared[width].params, alone.params)
        for flat in (shared[width], alone):
            sgd = flat.optimizer(Train(momentum=0.9, weight_decay=0.1), ())
            flat.reset_momentum()
            for _ in range(2):
                flat.gradient.zero_()
                flat.module(images).square().sum().backward()
                sgd(1.0)
        assert all(torch.equal(shared[width].params[name], value) for name, value in alone.params.items())
        assert not equal(nets[width], shared[width])
    assert shared[5].parameter.data_ptr() == shared[2].parameter.data_ptr()


@pytest.mark.parametrize("inputs", [4, 8])
def test_a_strided_conv_of_few_inputs_is_computed_without_its_stride(inputs: int) -> None:
    """oneDNN's AVX2 kernel for the gradient of such a conv, in channels_last, writes past its workspace."""
    plain = nn.Conv2d(inputs, 8, 1, stride=2)
    conv = copy.deepcopy(plain)
    subsample_before_narrow_convs(conv)
    images = torch.randn(3, inputs, 8, 8, requires_grad=True)
    outputs = [net(each) for net, each in ((plain, images), (conv, images.to(memory_format=torch.channels_last)))]
    torch.testing.assert_close(*outputs)
    first, second = (torch.autograd.grad(one.square().sum(), images)[0] for one in outputs)
    torch.testing.assert_close(first, second)
