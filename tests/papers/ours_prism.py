"""Ours for PriSM: Tables 1, 5, 6 and 10, and what section 4.1 says of O2.

Tables 1 and 10 count the 16 convolutions of the blocks (parameters, 2 x MACs, outputs, and those of their BatchNorms;
a batch of 32) at ranks c N that need not be whole. Ours are counted in nets of width 1.25, whose channels (80, 160 ...)
all four ratios divide, and scaled back: parameters and MACs by 1.25^2, outputs by 1.25.
"""

from functools import cache
from typing import Any

from papers.nets import Outputs, Setting, measured, setting
from torch import nn

from fedmpi.lowrank.kernels import kernel_net
from fedmpi.lowrank.rule import Rule, plan_layers
from fedmpi.methods.prism import OrthDrop
from fedmpi.results.printed import Cell

BATCH = 32
_WIDTH = 1.25
_RUN = "cifar10_iid/prism_02"


def _wide(*overrides: str) -> Setting:
    return setting("prism", _RUN, f"model.width={_WIDTH}", "method.cut_inputs=true", *overrides)


def _count(net: nn.Module) -> Outputs:
    """The parameters of the block convs and their BatchNorms at width 1."""
    counted = measured(net, _wide().info.example_shape, lambda name: "stages" in name and "shortcut" not in name)
    return Outputs(counted.params / _WIDTH**2, counted.macs / _WIDTH**2, counted.outputs / _WIDTH)


@cache
def _prism(ratio: str) -> Outputs:
    """Of a keep ratio, or of the `Full` net."""
    if ratio == "Full":
        return _count(_wide().model)
    return _count(_wide(f"method.keep_ratio=[{ratio}]").method.net(0, empty=True))


@cache
def _fedhm(ratio: str) -> Outputs:
    """r = c N kernels over all inputs, whose outputs are all computed."""
    model = _wide().model
    layers = plan_layers(model, Rule(dense_layers=1, unroll="output"))
    sizes = {layer.name: (round(float(ratio) * layer.out_features), layer.out_features) for layer in layers}
    return _count(kernel_net(model, sizes))


def _number(counted: Outputs, column: str) -> float:
    """The table's column: `Params`, `MACs` (2 x MACs x 32) or `Mem`, by itself or as a share of the full net's."""
    name, unit = column.split(" ")
    of = {"Params": counted.params, "MACs": 2 * BATCH * counted.macs, "Mem": BATCH * counted.outputs}[name]
    return of / _number(_prism("Full"), f"{name} (M)") if unit == "(%)" else of


def _o2_memory() -> float:
    """PriSM-O2 at 0.2: inputs stay cut as they are, twice the outputs of the second half and of BatchNorm."""
    method = setting("prism", _RUN, f"model.width={_WIDTH}", "method.o2=true").method
    assert isinstance(method, OrthDrop)
    net = method.net(0, empty=True)
    names = [layer.name for layer in method.factorized]
    sizes = [(len(net.get_parameter(f"{name}.u.weight")), len(net.get_parameter(f"{name}.v.weight"))) for name in names]
    return sum(r + 2 * q for r, q in sizes) / sum(3 * r for r, _ in sizes) - 1


def _module(run: str, kind: type[nn.Module], place: int = 0) -> Any:
    return [module for module in setting("prism", run).model.modules() if isinstance(module, kind)][place]


_CNN = "femnist/prism_kappa_02"
_LSTM = "imdb_iid/full"
FACTS = {
    "small_share": lambda: _prism("0.2").params / _prism("Full").params,
    "o2_memory": _o2_memory,
    "table4_downsample": lambda: sum(
        module.kernel_size == (1, 1)
        for module in setting("prism", _RUN).model.modules()
        if isinstance(module, nn.Conv2d)
    ),
    "table5_kernels1": lambda: _module(_CNN, nn.Conv2d).out_channels,
    "table5_kernels2": lambda: _module(_CNN, nn.Conv2d, 1).out_channels,
    "table5_size1": lambda: _module(_CNN, nn.Conv2d).kernel_size[0],
    "table5_size2": lambda: _module(_CNN, nn.Conv2d, 1).kernel_size[0],
    "table5_classes": lambda: setting("prism", _CNN).info.num_classes,
    "table6_words": lambda: _module(_LSTM, nn.Embedding).num_embeddings,
    "table6_embedding": lambda: _module(_LSTM, nn.Embedding).embedding_dim,
    "table6_inputs": lambda: _module(_LSTM, nn.LSTM).input_size,
    "table6_hidden": lambda: _module(_LSTM, nn.LSTM).hidden_size,
    "table6_layers": lambda: _module(_LSTM, nn.LSTM).num_layers,
    "table6_fc_inputs": lambda: _module(_LSTM, nn.Linear).in_features,
    "table6_fc_outputs": lambda: _module(_LSTM, nn.Linear).out_features,
}


def _table1(of: Cell) -> float:
    return _number(_prism(of.row), of.column)


CELLS = {"table1": _table1, "table10": lambda of: _number(_fedhm(of.row), of.column)}
