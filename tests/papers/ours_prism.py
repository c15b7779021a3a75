"""Ours for PriSM: Tables 1, 5, 6 and 10, and what section 4.1 says of O2.

Tables 1 and 10 count the 16 convolutions of the blocks (parameters, 2 x MACs, outputs, and those of their BatchNorms;
a batch of 32) at ranks c N that need not be whole. Ours are counted in nets of width 1.25, whose channels (80, 160 ...)
all four ratios divide, and scaled back: parameters and MACs by 1.25^2, outputs by 1.25.
"""

import copy
from functools import cache
from typing import Any

import torch
from papers.nets import Setting, modules_of, setting
from torch import Tensor, nn

from fedmpi.lowrank.modules import kernel_net
from fedmpi.lowrank.rule import Rule, plan_layers
from fedmpi.methods.prism import OrthDrop

BATCH = 32
_WIDTH = 1.25
_RUN = "cifar10_iid/prism_02"
Counted = dict[str, float]


def _wide(*overrides: str) -> Setting:
    return setting("prism", _RUN, f"model.width={_WIDTH}", "method.cut_inputs=true", *overrides)


def _count(net: nn.Module) -> Counted:
    """Parameters, 2 x MACs x 32 and 32 x outputs of the block convs, at width 1; outputs of their BatchNorms, too."""
    tally = {"Params": 0, "MACs": 0, "Mem": 0}

    def count(module: nn.Module, inputs: object, output: Tensor) -> None:
        tally["Mem"] += BATCH * output[0].numel()
        if isinstance(module, nn.Conv2d):
            tally["Params"] += module.weight.numel()
            tally["MACs"] += 2 * BATCH * module.weight.numel() * output[0, 0].numel()

    net = copy.deepcopy(net)  # a layer that has a hook stays dense
    for name, module in net.named_modules():
        is_of_block = "stages" in name and "shortcut" not in name
        if is_of_block and isinstance(module, nn.Conv2d | nn.BatchNorm2d):
            module.register_forward_hook(count)
    net(torch.empty(2, *_wide().info.example_shape, device="meta"))
    return {name: number / _WIDTH ** (1 if name == "Mem" else 2) for name, number in tally.items()}


@cache
def _prism(ratio: str) -> Counted:
    """Counts the sub-model of a keep ratio, or the `Full` net."""
    if ratio == "Full":
        return _count(_wide().model)
    return _count(_wide(f"method.keep_ratio=[{ratio}]").method.net(0, empty=True))


@cache
def _fedhm(ratio: str) -> Counted:
    """Counts r = c N kernels over all inputs, whose outputs are all computed."""
    model = _wide().model
    layers = plan_layers(model, Rule(dense_layers=1, unroll="output"))
    sizes = {layer.name: (round(float(ratio) * layer.out_features), layer.out_features) for layer in layers}
    return _count(kernel_net(model, sizes))


def _number(counted: Counted, column: str) -> float:
    """Returns `Params`, `MACs` or `Mem`, by itself or as a share of the full net's."""
    name, unit = column.split(" ")
    return counted[name] / _prism("Full")[name] if unit == "(%)" else counted[name]


def _o2_memory() -> float:
    """PriSM-O2 at 0.2: inputs stay cut as they are, twice the outputs of the second half and of BatchNorm."""
    method = setting("prism", _RUN, f"model.width={_WIDTH}", "method.o2=true").method
    assert isinstance(method, OrthDrop)
    net = method.net(0, empty=True)
    names = [layer.name for layer in method.factorized]
    sizes = [(len(net.get_parameter(f"{name}.u.weight")), len(net.get_parameter(f"{name}.v.weight"))) for name in names]
    return sum(r + 2 * q for r, q in sizes) / sum(3 * r for r, _ in sizes) - 1


def _module(run: str, kind: type[nn.Module], place: int = 0) -> Any:
    return modules_of(setting("prism", run).model, kind)[place]


def _conv(place: int) -> Any:
    """A conv of the CNN of Table 5."""
    return modules_of(setting("prism", _CNN, "model.name=cnn_prism").model, nn.Conv2d)[place]


_CNN = "femnist/prism_kappa_02"
_LSTM = "imdb_iid/full"
FACTS = {
    "small_share": lambda: _prism("0.2")["Params"] / _prism("Full")["Params"],
    "o2_memory": _o2_memory,
    "table4_downsample": lambda: sum(
        conv.kernel_size == (1, 1) for conv in modules_of(setting("prism", _RUN).model, nn.Conv2d)
    ),
    "table5_kernels1": lambda: _conv(0).out_channels,
    "table5_kernels2": lambda: _conv(1).out_channels,
    "table5_size1": lambda: _conv(0).kernel_size[0],
    "table5_size2": lambda: _conv(1).kernel_size[0],
    "table5_classes": lambda: setting("prism", _CNN).info.num_classes,
    "table6_words": lambda: _module(_LSTM, nn.Embedding).num_embeddings,
    "table6_embedding": lambda: _module(_LSTM, nn.Embedding).embedding_dim,
    "table6_inputs": lambda: _module(_LSTM, nn.LSTM).input_size,
    "table6_hidden": lambda: _module(_LSTM, nn.LSTM).hidden_size,
    "table6_layers": lambda: _module(_LSTM, nn.LSTM).num_layers,
    "table6_fc_inputs": lambda: _module(_LSTM, nn.Linear).in_features,
    "table6_fc_outputs": lambda: _module(_LSTM, nn.Linear).out_features,
}
TABLES = {
    "table1": lambda column, row: _number(_prism(row), column),
    "table10": lambda column, row: _number(_fedhm(row), column),
}
CELLS = {}
