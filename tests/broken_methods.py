"""Methods with a mistake each, which `fedmpi.check` must find."""

from collections.abc import Iterator
from typing import ClassVar

from torch import Tensor

from fedmpi.federation.assignment import Task
from fedmpi.learning.flat import FlatNet
from fedmpi.lowrank.rule import Rule, plan_layers
from fedmpi.methods.fedavg import FedAvg
from fedmpi.methods.protocol import Method
from fedmpi.methods.values import Client, Contributions, MethodContext, MethodOptions
from fedmpi.tensors import Params, Spec


class Counting(FedAvg):
    """Has a number in self that grows."""

    def __init__(self, context: MethodContext) -> None:
        super().__init__(context)
        self.count = 0

    def counted(self) -> int:
        self.count += 1
        return self.count


class Remembers(Counting):
    def upload(self, net: FlatNet, client: Client) -> Params:
        factor = 1 + 0.01 * self.counted()
        return {name: value * factor for name, value in net.params.items()}


class WritesPublished(FedAvg):
    def after_backward(self, net: FlatNet, client: Client) -> None:
        client.published["fc.bias"].add_(0.125)


class LeavesUnwritten(FedAvg):
    def narrow(self, published: Params, number: int, out: Params, client: Client | None = None) -> None:
        super().narrow(published, number, {name: value for name, value in out.items() if name != "fc.bias"}, client)


class SendsOtherShapes(FedAvg):
    def upload_specs(self, tier: int, task: Task | None = None) -> dict[str, Spec]:
        return super().upload_specs(tier) | {"fc.bias": Spec((3,))}


class LiftsTooMuch(FedAvg):
    def lift(self, upload: Params, client: Client) -> Iterator[tuple[str, Tensor]]:
        yield from ((name, 2 * value) for name, value in upload.items())


class LiftsInPlace(FedAvg):
    def lift(self, upload: Params, client: Client) -> Iterator[tuple[str, Tensor]]:
        yield from ((name, value.mul_(0.5)) for name, value in upload.items())


class LiftsInTurn(Counting):
    def lift(self, upload: Params, client: Client) -> Iterator[tuple[str, Tensor]]:
        factor = 1 / self.counted()
        yield from ((name, factor * value) for name, value in upload.items())


class UpdatesInPlace(FedAvg):
    def update(self, state: Params, means: Params, contributions: Contributions) -> Params:
        state["fc.bias"].copy_(means["fc.bias"])
        return state | means


class KeepsVelocity(Counting):
    def update(self, state: Params, means: Params, contributions: Contributions) -> Params:
        factor = 1 / self.counted()
        return {name: state[name].lerp(mean, factor) for name, mean in means.items()}


class StandsStill(FedAvg):
    def update(self, state: Params, means: Params, contributions: Contributions) -> Params:
        return state


class AdaptsTheState(FedAvg):
    """What a test of a client's own net leaves behind."""

    personal = True

    def adapt(self, trainer: object, client: Client, work: object) -> None:
        client.published["fc.bias"].add_(0.125)


class Raises(FedAvg):
    def after_backward(self, net: FlatNet, client: Client) -> None:
        raise KeyError("no such thing")


class SendsLess(FedAvg):
    """What torch would broadcast to the whole bias."""

    def upload(self, net: FlatNet, client: Client) -> Params:
        return net.params | {"fc.bias": net.params["fc.bias"][:1]}


class LiftsLess(FedAvg):
    def lift(self, upload: Params, client: Client) -> Iterator[tuple[str, Tensor]]:
        yield from (upload | {"fc.bias": upload["fc.bias"][:1]}).items()


class LiftsMore(FedAvg):
    def lift(self, upload: Params, client: Client) -> Iterator[tuple[str, Tensor]]:
        yield "fc.more", upload["fc.bias"]


class HasNoOptions(Method):
    pass


class HasOtherOptions(Method):
    Options = dict  # type: ignore[assignment]  # the mistake


class HasNoCapacity(Method):
    class Options(MethodOptions):
        capacity: ClassVar[str] = "ratios"
        name: str = "no_capacity"


class ListsItsLayers(FedAvg):
    def __init__(self, context: MethodContext) -> None:
        super().__init__(context)
        self.layers = plan_layers(context.make(empty=True), Rule())  # type: ignore[assignment]  # the mistake


class CannotBeMade(FedAvg):
    def __init__(self, context: MethodContext) -> None:
        raise ValueError("not\n today")
