"""Ours for PriSM (arXiv:2208.13141): Tables 1, 5, 6 and 10, and what section 4.1 says of O2.

Tables 1 and 10 count the 16 convolutions of the blocks (parameters, 2 x MACs, outputs, and those of
their BatchNorms; a batch of 32) at ranks c N that need not be whole. Ours are counted in nets of width
1.25, whose channels (80, 160 ...) all four ratios divide, and scaled back: parameters and MACs by
1.25^2, outputs by 1.25.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

from torch import nn

from fedmpi.lowrank.kernels import kernel_net
from fedmpi.lowrank.plan import Rule, plan_layers
from fedmpi.methods.prism import OrthDrop
from fedmpi.papers import Cell, read
from fedmpi.verify.claims import Checks
from fedmpi.verify.nets import Outputs, Setting, measured, setting

CHECKS = Checks()
BATCH = 32
_WIDTH = 1.25
_RUN = "prism/figure4_cifar10_iid_prism"


def _wide(*overrides: str) -> Setting:
    return setting(_RUN, f"model.width={_WIDTH}", "method.cut_inputs=true", *overrides)


def _count(found: Setting, net: nn.Module) -> Outputs:
    """Of the block convs and their BatchNorms at width 1."""
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
    number, whole = (
        {"Params": of.params, "MACs": 2 * BATCH * of.macs, "Mem": BATCH * of.outputs}[name] for of in (counted, _full())
    )
    return number / whole if unit == "(%)" else number


@CHECKS.table("table1")
def _table1(cell: Cell) -> float:
    return _number(_full() if cell.row == "Full" else _prism(cell.row), cell.column)


@CHECKS.table("table10")
def _table10(cell: Cell) -> float:
    return _number(_fedhm(cell.row), cell.column)


def _cut_off(cost: Callable[[str], Outputs], ratio: str, column: str, step: float) -> float:
    """Cut off after the printed digit instead of rounded."""
    return _number(cost(ratio), column) // step * step


def _rounded_up(cost: Callable[[str], Outputs], ratio: str, column: str, step: float) -> float:
    return math.ceil(_number(cost(ratio), column) / step) * step


CHECKS.reading("table1/PriSM/Params (%)/0.2")(partial(_cut_off, _prism, "0.2", "Params (%)", 0.001))
CHECKS.reading("table1/PriSM/MACs (G)/0.8")(partial(_cut_off, _prism, "0.8", "MACs (G)", 1e8))
CHECKS.reading("table1/PriSM/Mem (M)/0.8")(partial(_cut_off, _prism, "0.8", "Mem (M)", 1e6))
CHECKS.reading("table1/PriSM/Mem (M)/0.2")(partial(_rounded_up, _prism, "0.2", "Mem (M)", 1e5))
CHECKS.reading("table10/FedHM/Params (M)/0.4")(partial(_cut_off, _fedhm, "0.4", "Params (M)", 1e5))
for _ratio in ("0.6", "0.2"):
    CHECKS.reading(f"table10/FedHM/Params (%)/{_ratio}")(partial(_cut_off, _fedhm, _ratio, "Params (%)", 0.01))


@CHECKS.reading("table10/FedHM/Params (%)/0.4")
def _share_as_printed() -> float:
    """Of the numbers that the tables print."""
    part, whole = (read("prism").cell(f"{place}").paper for place in
                   ("table10/FedHM/Params (M)/0.4", "table1/PriSM/Params (M)/Full"))  # fmt: skip
    assert part is not None and whole is not None
    return part / whole // 0.01 * 0.01


@CHECKS.fact("small_share")
def _small_share() -> float:
    return _prism("0.2").params / _full().params


@CHECKS.fact("o2_memory")
def _o2_memory() -> float:
    """PriSM-O2 at 0.2: inputs stay cut as they are, twice the outputs of the second half and of BatchNorm."""
    found = setting(_RUN, f"model.width={_WIDTH}", "method.keep_ratio=[0.2]", "method.o2=true")
    assert isinstance(found.method, OrthDrop)
    net = found.method.net(0, empty=True)
    factors = [(f"{layer.name}.u.weight", f"{layer.name}.v.weight") for layer in found.method.factorized]
    sizes = [(len(net.get_parameter(u)), len(net.get_parameter(v))) for u, v in factors]
    return sum(r + 2 * q for r, q in sizes) / sum(3 * r for r, _ in sizes) - 1


# Tables 4, 5 and 6: the nets.


@CHECKS.fact("table4_downsample")
def _downsample() -> float:
    modules = setting(_RUN).model.modules()
    return float(sum(isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1) for module in modules))


def _cnn() -> list[nn.Conv2d]:
    model = setting("prism/figure5_femnist_natural_prism").model
    return [module for module in model.modules() if isinstance(module, nn.Conv2d)]


@CHECKS.fact("table5_kernels1")
def _kernels1() -> float:
    return float(_cnn()[0].out_channels)


@CHECKS.fact("table5_kernels2")
def _kernels2() -> float:
    return float(_cnn()[1].out_channels)


@CHECKS.fact("table5_size1")
def _size1() -> float:
    return float(_cnn()[0].kernel_size[0])


@CHECKS.fact("table5_size2")
def _size2() -> float:
    return float(_cnn()[1].kernel_size[0])


@CHECKS.fact("table5_classes")
def _classes() -> float:
    return float(setting("prism/figure5_femnist_natural_prism").info.num_classes)


def _lstm_shape(kind: type[nn.Module], attribute: str) -> float:
    modules = setting("prism/figure8_imdb_iid_full").model.modules()
    return float(getattr(next(module for module in modules if isinstance(module, kind)), attribute))


for _key, _kind, _attribute in (
    ("words", nn.Embedding, "num_embeddings"), ("embedding", nn.Embedding, "embedding_dim"),
    ("inputs", nn.LSTM, "input_size"), ("hidden", nn.LSTM, "hidden_size"), ("layers", nn.LSTM, "num_layers"),
    ("fc_inputs", nn.Linear, "in_features"), ("fc_outputs", nn.Linear, "out_features"),
):  # fmt: skip
    CHECKS.fact(f"table6_{_key}")(partial(_lstm_shape, _kind, _attribute))
