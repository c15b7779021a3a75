"""The pretend accelerator itself: it refuses host tensors, notes what a GPU would wait for, and has the CPU's bits."""

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from pretend import device
from torch import Tensor, nn
from torch.nn import functional as F

from fedmpi.learning.flat import Buffers, FlatNet, net_layout
from fedmpi.tensors import select, to_device

pytestmark = pytest.mark.skipif(not device.IS_POSSIBLE, reason="this torch registers devices in C++ only")


@pytest.fixture(autouse=True)
def available() -> Iterator[None]:
    with device.available():
        yield


def there(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(device.NAME)


MIXES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "add in place": lambda there, here: there.add_(here),
    "add to the host": lambda there, here: here.add_(there),
    "linear": lambda there, here: F.linear(there, here),
    "write": lambda there, here: torch.mul(there, 2, out=here),
    "mask": lambda there, here: there[here > 0],
    "convolve": lambda there, here: F.conv2d(there[None, None], here[None, None]),
    "all lists": lambda there, here: torch._foreach_add_([there], [here]),
    "another device": lambda there, here: there + here.to(f"{device.NAME}:1"),
}


@pytest.mark.parametrize("name", MIXES)
def test_host_tensors_are_refused(name: str) -> None:
    with pytest.raises(RuntimeError):
        MIXES[name](there(3, 3), torch.ones(3, 3))


def test_numbers_are_no_host_tensors() -> None:
    assert (there(3) * torch.tensor(2.0)).device.type == device.NAME
    assert (torch.arange(3, device=device.NAME) % 2).tolist() == [0, 1, 0]


WAITS: dict[str, tuple[int, Callable[[Tensor], object]]] = {
    "a number": (1, lambda x: float(x[0])),
    "a list": (1, lambda x: x.tolist()),
    "to the host": (1, lambda x: x.cpu()),
    "to the device": (1, lambda x: torch.ones(3).to(x.device)),
    "a mask as an index": (1, lambda x: x[x > 0]),
    "places": (1, lambda x: x.nonzero()),
    "are equal": (1, lambda x: torch.equal(x, x)),
    "to the device, at leisure": (0, lambda x: torch.ones(3).to(x.device, non_blocking=True)),
    "arithmetic": (0, lambda x: (x * 2 + 1).sum()),
    "a new tensor": (0, lambda x: torch.zeros(3, device=x.device)),
    "entries named on the host": (0, lambda x: select(x, torch.tensor([0, 2]))),
}


@pytest.mark.parametrize("name", WAITS)
def test_what_waits(name: str) -> None:
    expected, act = WAITS[name]
    tensor = there(3)
    with device.log.kept() as events:
        act(tensor)
    assert len(device.of(events, "wait")) == expected, events


NETS: dict[str, Callable[[], nn.Module]] = {
    "conv": lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
    "transposed": lambda: nn.ConvTranspose2d(3, 5, 2, stride=2),
    "norms": lambda: nn.Sequential(nn.LayerNorm(8), nn.GroupNorm(3, 3), nn.GELU(), nn.InstanceNorm2d(3)),
    "dropout": lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 9), nn.Dropout(0.3), nn.Tanh(), nn.LogSoftmax(1)),
}


@pytest.mark.parametrize("index", range(device.NUM_DEVICES))
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", NETS)
def test_nets_have_the_bits_of_the_cpu(name: str, memory_format: torch.memory_format, index: int) -> None:
    """Outputs and gradients, from the CPU's random numbers."""
    net = NETS[name]().to(memory_format=memory_format)
    inputs = torch.rand(4, 3, 8, 8).to(memory_format=memory_format)
    results = [gradients(copy.deepcopy(net).to(place), inputs.to(place)) for place in ("cpu", f"{device.NAME}:{index}")]
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


def gradients(net: nn.Module, inputs: Tensor) -> list[Tensor]:
    torch.manual_seed(1)
    output = net(inputs)
    (output**2).sum().backward()
    return [output.detach().cpu(), *(parameter.grad.cpu() for parameter in net.parameters())]


@pytest.mark.parametrize("squares", [False, True])
def test_a_step_allocates_nothing(squares: bool) -> None:
    """Nor does loading a client; both are a few operations on whole vectors."""
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    layout = net_layout(module.named_parameters(), (), channels_last=True)
    net = FlatNet(module, layout, Buffers(layout.num_bytes, device.NAME, squares=squares))
    decay = {"weight_decay": 0.1, "own_decay": ()}
    optimizer = net.adamw(beta1=0.9, beta2=0.9, eps=1e-8, **decay) if squares else net.optimizer(momentum=0.9, **decay)
    with device.log.kept() as events:
        net.reset_momentum()
        net.zero_gradient()
        optimizer.step(0.1)
    assert device.of(events, "new", "wait", "up", "down") == []


def test_tensors_cross_in_one_piece() -> None:
    """There and back, in their memory formats; what is there already stays."""
    kernel = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    here = {"kernel": kernel, "empty": torch.empty(0, 3), "number": torch.tensor(3, dtype=torch.int32)}
    near = torch.ones(2, device=device.NAME)
    with device.log.kept() as events:
        away = to_device(here | {"near": near}, device.NAME)
        back = to_device(away, "cpu")
    assert [event.kind for event in device.of(events, "up", "down")] == ["up", "down"]
    assert away["near"] is near and list(away) == [*here, "near"]
    for name, value in here.items():
        assert torch.equal(back[name], value) and back[name].stride() == value.stride(), name
    assert to_device(here, "cpu") is here
