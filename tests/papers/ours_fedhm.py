"""Ours for FedHM: Tables 1 and 5-8, Figures 4 and 7, sections 4.2, 4.3, C and D."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

from model_inputs import params
from papers import claims
from papers.claims import Ours
from papers.nets import Setting, modules_of, setting
from torch import nn

from fedmpi import costs
from fedmpi.lowrank.modules import LowRank, factorize_net, kernel_net
from fedmpi.lowrank.rule import Rule, plan_layers
from fedmpi.models import create
from fedmpi.results.printed import Cell

_of = partial(setting, "fedhm")
# Table 1: counts of single layers, (m, n, k, r, side) with n = r where a layer is not factorized.
_SIZES = ((64, 128, 3, 16, 8), (48, 24, 5, 7, 6), (3, 10, 3, 2, 5))


def _layer(kind: str, count: str) -> Ours:
    """Parameters or MACs of a layer of each size; `kind` names the layer and how it is unrolled, `dense` not at all."""
    shape, _, unroll = kind.partition(" ")
    samples = []
    for m, n, k, r, side in _SIZES:
        dense = nn.Conv2d(m, n, k, padding=k // 2, bias=False) if shape == "conv" else nn.Linear(m, n, bias=False)
        net: nn.Module = nn.Sequential(dense).to("meta")
        if unroll == "output":
            net = kernel_net(net, {"0": (r, n)})
        elif unroll:
            net = factorize_net(net, plan_layers(net, Rule(dense_layers=0, overrides={"0": r})), 0.5)
        example = (m, side, side) if shape == "conv" else (m,)
        at = {"m": m, "n": n, "k": k, "r": r, "H": side, "W": side}
        samples.append((at, getattr(costs.measure(net, example), count)))
    return samples


def _dense_convs(data: str) -> float:
    """3 x 3 convs of the smallest net that are whole."""
    convs = modules_of(_of(f"{data}_iid/fedhm").net("0.125"), nn.Conv2d)
    return sum(conv.kernel_size == (3, 3) for conv in convs)


def _factorized(data: str, layer: int) -> float:
    modules = _of(f"{data}_iid/fedhm").net("0.125").named_modules()
    return sum(isinstance(module, LowRank) and name.startswith(f"stages.{layer - 1}.") for name, module in modules)


def _millions(number: float) -> float:
    """The number as the paper prints it."""
    return round(number / 1e6, 2)


# Compute: section 4.3, Figures 4 and 7, appendices C.3 and D.2.


def _one_net(data: str, level: str) -> Setting:
    """One net for all clients: `Original`, or its rank ratio as a fraction."""
    return _of(f"{data}_iid/{'slim' if level == 'Original' else level.replace('1/', 'lowrank_')}")


@cache
def _costs(data: str, level: str) -> costs.Costs:
    found = _one_net(data, level)
    return costs.measure(found.method.net(0, empty=True), found.info.example_shape)


def _macs(data: str, level: str) -> float:
    """MACs as the paper counts them, with norm layers and activations."""
    return float(_costs(data, level).macs_with_norm_and_activations)


@cache
def _stage(data: str, row: str) -> dict[str, float]:
    """Parameters and MACs of a stage, or of the classifier without the pooling."""
    found = _one_net(data, "Original")
    net, (_, height, width) = found.model, found.info.example_shape
    if row == "fc":
        part, shape = "fc", tuple(net.get_parameter("fc.weight").shape[1:])
    else:
        stage = int(row.removeprefix("layer")) - 1
        part, scale = f"stages.{stage}", 2 ** max(0, stage - 1)
        shape = (net.get_parameter(f"{part}.0.conv1.weight").shape[1], height // scale, width // scale)
    measured = costs.measure(net.get_submodule(part), shape)
    return {"Params": float(measured.params), "MACs": float(measured.macs_with_norm_and_activations)}


def _figure7(column: str, row: str) -> float:
    data, what = column.split()[::2]
    return _stage(data.lower().replace("-", ""), row)[what]


def _share_of_later_stages(data: str, what: str) -> float:
    whole = {"Params": _costs(data, "Original").params, "MACs": _macs(data, "Original")}[what]
    return sum(_stage(data, row)[what] for row in ("layer3", "layer4")) / whole


def _reduction(data: str, level: str) -> float:
    return _costs(data, "Original").params / _costs(data, level).params


def _two_percent(data: str) -> float:
    found = _of(f"{data}_iid/twopercent")
    return params(found.method.net(0, empty=True)) / params(found.model)


# Sections 2.2, 4.2 and 4.3.


def _printed(table: str, block: str, column: str, row: int) -> float:
    """Returns the accuracy of a row of a printed table, 0 for the largest net."""
    cells = [cell for _, cell in claims.cells("fedhm", table) if (cell.block, cell.column) == (block, column)]
    return float(cells[row].value)


def _gain_on_split_mix(block: str) -> float:
    return _printed("table3", block, "FedHM", 0) - _printed("table3", block, "Split-Mix", 0)


def _gain_of_smallest(block: str, row: int) -> float:
    """FedHM's smallest net against a row of HeteroFL's."""
    return _printed("table2", block, "FedHM", -1) - _printed("table2", block, "HeteroFL", row)


def _compute_saved(block: str, level: str) -> float:
    bars = {cell.row: float(cell.value) for _, cell in claims.cells("fedhm", "figure4b") if cell.block == block}
    return bars["Original"] / bars[level]


def _bytes_saved(block: str, level: str) -> float:
    """The whole net's bar of Figure 4a over the bytes of the rounds that Figure 4b's bar of the level has."""
    (whole,) = (cell for _, cell in claims.cells("fedhm", "figure4a") if (cell.block, cell.row) == (block, "Original"))
    (bar,) = (cell for _, cell in claims.cells("fedhm", "figure4b") if (cell.block, cell.row) == (block, level))
    return float(whole.value) / (_moved(bar.run) * round(float(bar.value) / _computed(bar.run)))


def _last_blocks_of_resnet50() -> float:
    found = _of("cifar10_iid/slim", "model={name: torchvision:resnet50}")
    net = create.skeleton(found.config.model, replace(found.info, num_classes=1000))
    return params(net.get_submodule("layer4")) / params(net)


# Costs of a run: section 4.3's formulas, and Figure 4's bars of them.


def _run_costs(measure: Callable[[Setting], float]) -> Ours:
    """What the plan of a run has; `samples` are those of the whole cohort."""
    samples = []
    for level in ("Original", "1/8"):
        found = _one_net("cifar10", level)
        config, net = found.config, _costs("cifar10", level)
        cohort = config.clients.per_round * found.info.num_train // config.clients.count
        at = {"participants": config.clients.per_round, "rounds": config.rounds, "epochs": config.train.local_epochs}
        samples.append((at | {"parameters": net.params, "MACs": net.macs, "samples": cohort}, measure(found)))
    return samples


def _moved(run: str) -> float:
    """2 x 10 x the printed size / 1024."""
    found = _of(run)
    return 2 * found.config.clients.per_round * _millions(params(found.method.net(0, empty=True))) / 1024


def _computed(run: str) -> float:
    """MACs in millions, to two digits, x 10 / 1024; the rounds need not be those of Figure 4a."""
    found = _of(run)
    net = costs.measure(found.method.net(0, empty=True), found.info.example_shape)
    return _millions(net.macs_with_norm_and_activations) * found.config.clients.per_round / 1024


def _bar(of: Cell, of_a_round: Callable[[str], float]) -> float:
    """What the whole number of rounds that comes nearest to the printed number gives."""
    one = of_a_round(of.run)
    return one * round(float(of.value) / one)


_LEVELS = {"full": "Original", "half": "1/2", "quarter": "1/4", "eighth": "1/8", "12th": "1/12"}
_LAYERS = {"fc": "fc", "fc_lowrank": "fc paper", "conv": "conv", "conv_lowrank": "conv paper"}
_LAYERS["conv_pufferfish"] = "conv output"
FACTS: dict[str, Callable[[], Ours]] = {
    **{f"table1_{fact}_params": partial(_layer, kind, "params") for fact, kind in _LAYERS.items()},
    **{f"table1_{fact}_macs": partial(_layer, kind, "macs") for fact, kind in _LAYERS.items()},
    "rho_resnet18": partial(_dense_convs, "cifar10"),
    "rho_resnet34": partial(_dense_convs, "cifar100"),
    **{f"table5_layer{layer}": partial(_factorized, "cifar10", layer) for layer in (1, 2, 3, 4)},
    **{f"table6_layer{layer}": partial(_factorized, "cifar100", layer) for layer in (3, 4)},
    **{f"macs_resnet34_{name}": partial(_macs, "cifar100", level) for name, level in _LEVELS.items()},
    "heterofl_rate_cifar10": lambda: _of("cifar10_iid/heterofl_resnet18").method.tiers[1].capacity,
    "heterofl_rate_cifar100": lambda: _of("cifar100_iid/heterofl_resnet34").method.tiers[1].capacity,
    "params_resnet34_12th": lambda: _costs("cifar100", "1/12").params,
    "later_params_resnet18": partial(_share_of_later_stages, "cifar10", "Params"),
    "later_params_resnet34": partial(_share_of_later_stages, "cifar100", "Params"),
    "later_macs_resnet34": partial(_share_of_later_stages, "cifar100", "MACs"),
    "reduction_high": partial(_reduction, "cifar10", "1/8"),
    "reduction_low": partial(_reduction, "cifar100", "1/12"),
    "reduction_compute": lambda: _macs("cifar100", "Original") / _macs("cifar100", "1/8"),
    "compute_saved_cifar10_iid": partial(_compute_saved, "CIFAR-10 IID", "1/8"),
    "compute_saved_cifar10_noniid": partial(_compute_saved, "CIFAR-10 Non-IID", "1/8"),
    "compute_saved_cifar100_iid": partial(_compute_saved, "CIFAR-100 IID", "1/12"),
    "compute_saved_cifar100_noniid": partial(_compute_saved, "CIFAR-100 Non-IID", "1/12"),
    "bytes_saved_cifar10_iid": partial(_bytes_saved, "CIFAR-10 IID", "1/8"),
    "bytes_saved_cifar10_noniid": partial(_bytes_saved, "CIFAR-10 Non-IID", "1/8"),
    "bytes_saved_cifar100_iid": partial(_bytes_saved, "CIFAR-100 IID", "1/12"),
    "bytes_saved_cifar100_noniid": partial(_bytes_saved, "CIFAR-100 Non-IID", "1/12"),
    "resnet50_last": _last_blocks_of_resnet50,
    "gain_split_mix_cifar10_iid": partial(_gain_on_split_mix, "CIFAR-10 IID"),
    "gain_split_mix_cifar10_noniid": partial(_gain_on_split_mix, "CIFAR-10 Non-IID"),
    "gain_split_mix_cifar100_iid": partial(_gain_on_split_mix, "CIFAR-100 IID"),
    "gain_split_mix_cifar100_noniid": partial(_gain_on_split_mix, "CIFAR-100 Non-IID"),
    "gain_smallest_iid": partial(_gain_of_smallest, "CIFAR-100 IID", 1),
    "gain_smallest_noniid": partial(_gain_of_smallest, "CIFAR-100 Non-IID", 1),
    "two_percent_cifar10": partial(_two_percent, "cifar10"),
    "two_percent_cifar100": partial(_two_percent, "cifar100"),
    "communication_cost": lambda: _run_costs(lambda found: found.plan.bytes_per_run / costs.FLOAT32_BYTES),
    "computation_cost": lambda: _run_costs(lambda found: found.plan.training_macs_per_run),
}
for _data in ("cifar10", "cifar100", "tinyimagenet"):
    _run = f"{_data}_iid/fedhm"
    FACTS[f"samples_{_data}"] = lambda run=_run: _of(run).info.num_train / _of(run).config.clients.count
TABLES = {"figure7": _figure7}
CELLS = {"figure4a": partial(_bar, of_a_round=_moved), "figure4b": partial(_bar, of_a_round=_computed)}
