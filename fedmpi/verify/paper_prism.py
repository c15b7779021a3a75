"""Ours for PriSM (arXiv:2208.13141): Tables 1, 5, 6 and 10, and what section 4.1 says of O2.

Tables 1 and 10 count the 16 convolutions of the blocks (parameters, 2 x MACs, outputs, and those of their BatchNorms;
a batch of 32) at ranks c N that need not be whole. Ours are counted in nets of width 1.25, whose channels (80, 160 ...)
all four ratios divide, and scaled back: parameters and MACs by 1.25^2, outputs by 1.25.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from torch import nn

from fedmpi.lowrank.kernels import kernel_net
from fedmpi.lowrank.rule import Rule, plan_layers
from fedmpi.methods.prism import OrthDrop
from fedmpi.papers import read
from fedmpi.verify.claims import Checks
from fedmpi.verify.nets import Outputs, Setting, measured, setting

BATCH = 32
_WIDTH = 1.25
_RUN = "prism/figure4.yaml@cifar10_iid_prism"
_CNN = "prism/figure5.yaml@femnist_natural_prism"


def _wide(*overrides: str) -> Setting:
    return setting(_RUN, f"model.width={_WIDTH}", "method.cut_inputs=true", *overrides)


def _count(found: Setting, net: nn.Module) -> Outputs:
    """The parameters of the block convs and their BatchNorms at width 1."""
    counted = measured(net, found.info.example_shape, lambda name: "stages" in name and "shortcut" not in name)
    return Outputs(counted.params / _WIDTH**2, counted.macs / _WIDTH**2, counted.outputs / _WIDTH)


@cache
def _full() -> Outputs:
    found = _wide()
    return _count(found, found.model)


@cache
def _prism(ratio: str) -> Outputs:
    found = _wide(f"method.keep_ratio=[{ratio}]")
    return _count(found, found.method.net(0, empty=True))


@cache
def _fedhm(ratio: str) -> Outputs:
    """r = c N kernels over all inputs, whose outputs are all computed."""
    found = _wide()
    layers = plan_layers(found.model, Rule(dense_layers=1, unroll="output"))
    sizes = {layer.name: (round(float(ratio) * layer.out_features), layer.out_features) for layer in layers}
    return _count(found, kernel_net(found.model, sizes))


def _number(counted: Outputs, column: str) -> float:
    """The table's column: `Params`, `MACs` (2 x MACs x 32) or `Mem`, by itself or as a share of the full net's."""
    name, unit = column.split(" ")
    of = {"Params": counted.params, "MACs": 2 * BATCH * counted.macs, "Mem": BATCH * counted.outputs}[name]
    return of / _number(_full(), f"{name} (M)") if unit == "(%)" else of


def _cut_off(counted: Outputs, column: str, step: float) -> float:
    """Cut off after the printed digit instead of rounded."""
    return _number(counted, column) // step * step


def _share_as_printed() -> float:
    """The share of the numbers that the tables print."""
    places = ("table10/FedHM/Params (M)/0.4", "table1/PriSM/Params (M)/Full")
    part, whole = (float(read("prism").cell(place).printed) for place in places)
    return part / whole // 0.01 * 0.01


def _o2_memory() -> float:
    """PriSM-O2 at 0.2: inputs stay cut as they are, twice the outputs of the second half and of BatchNorm."""
    found = setting(_RUN, f"model.width={_WIDTH}", "method.keep_ratio=[0.2]", "method.o2=true")
    assert isinstance(found.method, OrthDrop)
    net = found.method.net(0, empty=True)
    factors = [(f"{layer.name}.u.weight", f"{layer.name}.v.weight") for layer in found.method.factorized]
    sizes = [(len(net.get_parameter(u)), len(net.get_parameter(v))) for u, v in factors]
    return sum(r + 2 * q for r, q in sizes) / sum(3 * r for r, _ in sizes) - 1


def _modules(config: str, kind: type[nn.Module]) -> list[Any]:
    return [module for module in setting(config).model.modules() if isinstance(module, kind)]


def _conv(place: int) -> nn.Conv2d:
    """Conv `place` of the CNN of Table 5."""
    return _modules(_CNN, nn.Conv2d)[place]


def _lstm(kind: type[nn.Module], attribute: str) -> float:
    """`attribute` of the first `kind` of module in the net of Table 6."""
    return float(getattr(_modules("prism/figure8.yaml@imdb_iid_full", kind)[0], attribute))


CHECKS = Checks(
    facts={
        "small_share": lambda: _prism("0.2").params / _full().params,
        "o2_memory": _o2_memory,
        "table4_downsample": lambda: sum(conv.kernel_size == (1, 1) for conv in _modules(_RUN, nn.Conv2d)),
        "table5_kernels1": lambda: _conv(0).out_channels,
        "table5_kernels2": lambda: _conv(1).out_channels,
        "table5_size1": lambda: _conv(0).kernel_size[0],
        "table5_size2": lambda: _conv(1).kernel_size[0],
        "table5_classes": lambda: setting(_CNN).info.num_classes,
        "table6_words": lambda: _lstm(nn.Embedding, "num_embeddings"),
        "table6_embedding": lambda: _lstm(nn.Embedding, "embedding_dim"),
        "table6_inputs": lambda: _lstm(nn.LSTM, "input_size"),
        "table6_hidden": lambda: _lstm(nn.LSTM, "hidden_size"),
        "table6_layers": lambda: _lstm(nn.LSTM, "num_layers"),
        "table6_fc_inputs": lambda: _lstm(nn.Linear, "in_features"),
        "table6_fc_outputs": lambda: _lstm(nn.Linear, "out_features"),
    },
    cells={
        "table1": lambda cell: _number(_full() if cell.row == "Full" else _prism(cell.row), cell.column),
        "table10": lambda cell: _number(_fedhm(cell.row), cell.column),
    },
    readings={
        "table1/PriSM/Params (%)/0.2": lambda: _cut_off(_prism("0.2"), "Params (%)", 0.001),
        "table1/PriSM/MACs (G)/0.8": lambda: _cut_off(_prism("0.8"), "MACs (G)", 1e8),
        "table1/PriSM/Mem (M)/0.8": lambda: _cut_off(_prism("0.8"), "Mem (M)", 1e6),
        "table1/PriSM/Mem (M)/0.2": lambda: math.ceil(_number(_prism("0.2"), "Mem (M)") / 1e5) * 1e5,  # rounded up
        "table10/FedHM/Params (M)/0.4": lambda: _cut_off(_fedhm("0.4"), "Params (M)", 1e5),
        "table10/FedHM/Params (%)/0.6": lambda: _cut_off(_fedhm("0.6"), "Params (%)", 0.01),
        "table10/FedHM/Params (%)/0.2": lambda: _cut_off(_fedhm("0.2"), "Params (%)", 0.01),
        "table10/FedHM/Params (%)/0.4": _share_as_printed,
    },
)
