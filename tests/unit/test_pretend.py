"""The pretend accelerator notes what a GPU would wait for; a step allocates nothing, and tensors cross in one piece."""

from collections.abc import Callable, Iterator

import pytest
import torch
from pretend import device
from torch import Tensor, nn

from fedmpi.config.schema import Train
from fedmpi.learning.flat import Buffers, FlatNet, net_layout
from fedmpi.tensors import select, to_device

pytestmark = pytest.mark.skipif(not device.IS_POSSIBLE, reason="this torch registers devices in C++ only")


@pytest.fixture(autouse=True)
def available() -> Iterator[None]:
    with device.available():
        yield


def there(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(device.NAME)


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


@pytest.mark.parametrize("squares", [False, True])
def test_a_step_allocates_nothing(squares: bool) -> None:
    """Nor does loading a client; both are a few operations on whole vectors."""
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    layout = net_layout(module.named_parameters(), (), channels_last=True)
    net = FlatNet(module, layout, Buffers(layout.num_bytes, device.NAME, squares=squares))
    train = Train(optimizer="adamw" if squares else "sgd", momentum=0.9, weight_decay=0.1)
    take_step = net.optimizer(train, ())
    with device.log.kept() as events:
        net.reset_momentum()
        net.gradient.zero_()
        take_step(0.1)
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
