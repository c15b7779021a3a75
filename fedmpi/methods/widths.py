"""What methods share whose clients train narrow nets, a part of every layer of the widest one.

Publish: the widest net. Narrow: its leading entries (`surgery.nested`), unless a method holds others. Aggregation: each
entry is the weighted mean over the clients that hold it; one that nobody holds keeps its value. All of it
follows from `held`; a method adds its widths, its weights and its training.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedmpi.config.fields import Shares
from fedmpi.methods.fedopt import ServerMethod, ServerOptions
from fedmpi.methods.protocol import all_nets, copy_into, net_specs
from fedmpi.methods.values import Client, MethodContext, MethodOptions
from fedmpi.models.surgery.groups import Index, crossed
from fedmpi.models.surgery.nested import nested_parts, refuse_unnested
from fedmpi.models.surgery.scaler import add_scaler, scaled_layers, scaler_warning
from fedmpi.models.width import Rounding
from fedmpi.tensors import Params, Region, Spec, select


class WidthOptions(ServerOptions):
    """What HeteroFL, FedRolex and FjORD share."""

    capacity: ClassVar[str] = "widths"
    widths: Shares = (1.0, 0.5, 0.25, 0.125)
    """Share of every layer's channels that each tier has, largest first."""
    rounding: Rounding = "ceil"
    """Channels of a layer: rounded up, or to the nearest whole number."""


class ScaledOptions(WidthOptions):
    scaler: bool = True
    """Divide activations by width / largest width in training, before every norm layer; in a net without any, after
    every conv and linear layer but the last.
    """


class WidthMethod(ServerMethod):
    """Nets of several widths, each a part of the widest; a tier's capacity is its width."""

    has_full_net: bool = False
    """Whether the server's net is the whole one, of width 1, with the number after those of the tiers."""
    label_aware: bool = False
    """Whether only clients that have examples of a class contribute its row of the last linear layer."""

    def __init__(self, context: MethodContext) -> None:
        super().__init__(context)
        # PriSM's OrigDrop has neither option.
        self.rounding: Rounding = getattr(self.options, "rounding", "ceil")
        self.scales: bool = getattr(self.options, "scaler", False)
        self.net_widths = (*self.options.tiers, 1.0) if self.has_full_net else self.options.tiers

    @cached_property
    def _widest(self) -> nn.Module:
        return self.context.make(max(self.net_widths), self.rounding, empty=True)

    @cached_property
    def model_specs(self) -> dict[str, Spec]:
        return net_specs(self._widest)

    def warnings(self) -> tuple[str, ...]:
        said = []
        if self.label_aware and not self._class_names:
            said.append("no linear layer has an output for each class, so clients contribute rows of all classes")
        rate = min(self.net_widths) / max(self.net_widths)
        if self.scales and (found := scaler_warning(self._widest, rate)):
            is_scaled = scaled_layers(self._widest)
            said.append(f"{found}: choose method.scaler=false" if is_scaled else found)
        return tuple(said)

    def initial_state(self) -> Params:
        widest = self.context.make(max(self.net_widths), self.rounding)
        return {name: value.detach().clone() for name, value in widest.named_parameters()}

    def held(self, number: int, client: Client | None) -> Mapping[str, tuple[Index, ...]]:
        """Returns the entries that net `number` has of each tensor that it does not have whole, for a client or a test
        (None), an index for each of the leading axes. By default they are the leading ones."""
        return self._leading[number]

    @cached_property
    def _leading(self) -> list[dict[str, tuple[Index, ...]]]:
        return [nested_parts(self._widest, self.net(number, empty=True)) for number in all_nets(self)]

    def regions(self, client: Client) -> Mapping[str, Region]:
        rows = self._class_rows(client)
        held = dict(self.held(client.task.tier, client))
        if rows is not None:
            held |= {name: (rows, *held.get(name, ())[1:]) for name in self._class_names}
        return {name: crossed(indices) for name, indices in held.items()}

    def lift(self, upload: Params, client: Client) -> Iterator[tuple[str, Tensor]]:
        """Yields the upload as it came, but of the classes the client's own rows only."""
        rows = self._class_rows(client)
        for name, value in upload.items():
            yield name, value if rows is None or name not in self._class_names else select(value, rows)

    @cached_property
    def _class_names(self) -> tuple[str, ...]:
        """Names the parameters with a row for each class: those of the layer that gives the classes, if it is linear
        and has as many rows."""
        layers = {name: part for name, part in self._widest.named_modules() if isinstance(part, nn.Linear)}
        names = [name for name, part in layers.items() if part.out_features == self.context.num_classes]
        found = self.context.classifier() or (names[-1] if names else "")
        return tuple(name for name in self.state_specs() if found in names and name.rpartition(".")[0] == found)

    def _class_rows(self, client: Client) -> Tensor | None:
        """Returns the classes whose rows this client contributes, int64; None means all."""
        if not self.label_aware or not self._class_names or self.context.present_labels is None:
            return None
        present = torch.from_numpy(self.context.present_labels(client.task.client))
        return None if bool(present.all()) else present.nonzero().squeeze(1)

    def net(self, number: int, *, empty: bool = False) -> nn.Module:
        net = self.context.make(self.net_widths[number], self.rounding, empty=empty)
        refuse_unnested(self._widest, net)
        rate = self.net_widths[number] / max(self.net_widths) if self.scales else 1.0
        return add_scaler(net, rate)

    def narrow(self, published: Params, number: int, out: Params, client: Client | None = None) -> None:
        """Copies the entries that it holds of every tensor."""
        held = self.held(number, client)
        copy_into(out, {name: select(published[name], crossed(held.get(name, ()))) for name in out})


class KeepRatioOptions(MethodOptions):
    """What PriSM and its baselines share."""

    capacity: ClassVar[str] = "keep_ratio"
    keep_ratio: Shares = (0.4, 0.2)
    """Share of every layer's channels (PriSM and OrthDrop: kernels and outputs) that each tier trains, largest first;
    rounded up. Two tiers have 40 and 60 % of the clients, unless `clients.tier_blocks` says otherwise."""
    test_tiers: bool = False
    """Test each tier's net beside the whole one: the leading channels, or kernels and outputs. The paper tests the
    whole net alone. Clients of `prism` train drawn kernels, so none of them has exactly its tier's leading net."""

    def tier_blocks(self, num_clients: int) -> tuple[int, ...]:
        """Returns the blocks: of two tiers 40 % have the larger ratio (PriSM, section 4.2)."""
        larger = round(0.4 * num_clients)
        return (larger, num_clients - larger) if len(self.tiers) == 2 else super().tier_blocks(num_clients)
