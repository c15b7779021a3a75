"""Ours for FedHM (arXiv:2111.14655): Tables 1 and 5-8, Figures 4 and 7, sections 4.2, 4.3, C and D."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial

from torch import nn

from fedmpi import costs
from fedmpi.lowrank.kernels import kernel_net
from fedmpi.lowrank.modules import LowRank, factorize_net
from fedmpi.lowrank.rule import Rule, plan_layers
from fedmpi.methods.fedhm import FedHM
from fedmpi.papers import Cell, read
from fedmpi.verify.claims import Checks, Ours, Sample
from fedmpi.verify.nets import Setting, of_run, params, setting

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
            rule = Rule(dense_layers=0, overrides={"0": r})
            net = factorize_net(net, plan_layers(net, rule), 0.5)
        example = (m, side, side) if shape == "conv" else (m,)
        at = {"m": m, "n": n, "k": k, "r": r, "H": side, "W": side}
        samples.append(Sample(at, getattr(costs.measure(net, example), count)))
    return tuple(samples)


_LAYERS = {"fc": "fc", "fc_lowrank": "fc paper"}
_LAYERS |= {"conv": "conv", "conv_lowrank": "conv paper", "conv_pufferfish": "conv output"}


def _fedhm(data: str) -> Setting:
    return setting(f"fedhm/table3.yaml@{data}_iid_fedhm")


def _dense_convs(found: Setting) -> float:
    """3 x 3 convs of the smallest net that are whole."""
    return sum(isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3) for m in found.net("0.125").modules())


def _factorized(data: str, stage: int) -> float:
    modules = _fedhm(data).net("0.125").named_modules()
    return sum(isinstance(m, LowRank) and name.startswith(f"stages.{stage}.") for name, m in modules)


def _samples(data: str) -> float:
    found = _fedhm(data)
    return found.info.num_train / found.config.clients.count


def _second_width(data: str) -> float:
    return float(setting(f"fedhm/table3.yaml@{data}_iid_heterofl").method.tiers[1].capacity)


def _nine_times_rounded() -> float:
    """Nine of the size of one base net that the table prints."""
    found = setting("fedhm/table3.yaml@cifar10_iid_splitmix")
    nets = [params(found.method.net(tier.index, empty=True)) for tier in found.method.tiers]
    return round(nets[0] / nets[-1]) * _millions(nets[-1]) * 1e6


def _millions(number: float) -> float:
    """The number as the paper prints it."""
    return round(number / 1e6, 2)


def _cut_off() -> float:
    return params(_fedhm("cifar100").net("0.125")) // 10_000 * 1e4


# Compute: section 4.3, Figures 4 and 7, appendices C.3 and D.2.


def _homogeneous(data: str, level: str) -> Setting:
    """One net for all clients: `Original`, or its rank ratio as a fraction (1/12 is in the authors' plots only)."""
    if level == "Original":
        return setting(f"fedhm/table8.yaml@{data}_iid_slim")
    return setting(f"fedhm/table8.yaml@{data}_iid_lowrank", f"method.rank_ratio=[{1 / int(level[2:]):.10f}]")


@cache
def _costs(data: str, level: str) -> costs.Costs:
    found = _homogeneous(data, level)
    return costs.measure(found.method.net(0, empty=True), found.info.example_shape)


def _macs(data: str, level: str) -> float:
    """MACs as the paper counts them, with norm layers and activations."""
    return float(_costs(data, level).macs_with_norm_and_activations)


def _macs_of_ranks_cut_off() -> float:
    """The MACs with ranks N / 12 that are cut off instead of rounded."""
    found = _homogeneous("cifar100", "1/12")
    assert isinstance(found.method, FedHM)
    layers = [replace(layer, fixed=layer.out_features // 12) for layer in found.method.layers.values()]
    net = factorize_net(found.model, layers, 1 / 12)
    return float(costs.measure(net, found.info.example_shape).macs_with_norm_and_activations)


def _stage(cell: Cell) -> float:
    """Parameters or MACs of a stage, or of the classifier without the pooling."""
    return _stage_costs(cell.block.split()[0].lower().replace("-", ""), cell.row)[cell.column.split()[0]]


@cache
def _stage_costs(data: str, row: str) -> dict[str, float]:
    found = _homogeneous(data, "Original")
    net, (_, height, width) = found.model, found.info.example_shape
    if row == "fc":
        part, shape = "fc", tuple(net.get_parameter("fc.weight").shape[1:])
    else:
        stage = int(row.removeprefix("layer")) - 1
        part, scale = f"stages.{stage}", 2 ** max(0, stage - 1)
        channels = net.get_parameter(f"{part}.0.conv1.weight").shape[1]
        shape = (channels, height // scale, width // scale)
    measured = costs.measure(net.get_submodule(part), shape)
    return {"Params": float(measured.params), "MACs": float(measured.macs_with_norm_and_activations)}


def _share_of_later_stages(data: str, what: str) -> float:
    whole = {"Params": _costs(data, "Original").params, "MACs": _macs(data, "Original")}[what]
    return sum(_stage_costs(data, row)[what] for row in ("layer3", "layer4")) / whole


def _reduction(data: str, level: str) -> float:
    return _costs(data, "Original").params / _costs(data, level).params


def _two_percent(data: str) -> float:
    found = setting(f"fedhm/figure8.yaml@{data}_iid_twopercent")
    return params(found.method.net(0, empty=True)) / params(found.model)


# Costs of a run: section 4.3's formulas, and Figure 4's bars of them.


def _run_costs(measure: Callable[[Setting], float]) -> Ours:
    """What `fedmpi plan` says of a run; `samples` are those of the whole cohort."""
    samples = []
    for level in ("Original", "1/8"):
        found = _homogeneous("cifar10", level)
        config, net = found.config, _costs("cifar10", level)
        cohort = config.clients.per_round * found.info.num_train // config.clients.count
        at = {"participants": config.clients.per_round, "rounds": config.rounds, "epochs": config.train.local_epochs}
        at |= {"parameters": net.params, "MACs": net.macs, "samples": cohort}
        samples.append(Sample(at, measure(found)))
    return tuple(samples)


def _communication_bar(cell: Cell) -> float:
    """2 x 10 x the printed size x rounds / 1024, for the whole number of rounds that comes nearest."""
    moved = _moved_in_a_round(of_run(cell.run))
    return moved * round(float(cell.printed) / moved)


def _moved_in_a_round(found: Setting) -> float:
    return 2 * found.config.clients.per_round * _millions(params(found.method.net(0, empty=True))) / 1024


def _computation_bar(cell: Cell) -> float:
    """MACs in millions, to two digits, x 10 x rounds / 1024, likewise; its rounds need not be those of Figure 4a."""
    found = of_run(cell.run)
    net = costs.measure(found.method.net(0, empty=True), found.info.example_shape)
    computed = _millions(net.macs_with_norm_and_activations) * found.config.clients.per_round / 1024
    return computed * round(float(cell.printed) / computed)


def _bars(table: str, block: str, level: str) -> list[Cell]:
    """The bars of the original net and of the factorized one."""
    return [read("fedhm").cell(f"{table}/{block}/{which}/{which}") for which in ("Original", level)]


def _saved_bytes(key: str, block: str, level: str) -> float:
    """The factor by which the factorized net moves less until it reaches the target.

    The bar of the original net is that of Figure 4a; rounds of the other, whose bar is drawn only, are
    the whole number that comes nearest to what is printed.
    """
    original, factorized = _bars("figure4a", block, level)
    bar, moved = _communication_bar(original), _moved_in_a_round(of_run(factorized.run))
    return bar / (moved * round(bar / moved / float(read("fedhm").facts[key].printed)))


def _saved_macs(block: str, level: str) -> float:
    """The factor by which it computes less: the ratio of the bars of Figure 4b."""
    original, factorized = map(_computation_bar, _bars("figure4b", block, level))
    return original / factorized


def _gain(better: str, worse: str) -> float:
    """Between two cells, as they are printed."""
    high, low = (float(read("fedhm").cell(place).printed) for place in (better, worse))
    return (high - low) / 100


_SMALLEST = "table2/CIFAR-100 IID/FedHM/3.27M"
_LEVELS = {"full": "Original", "half": "1/2", "quarter": "1/4", "eighth": "1/8", "12th": "1/12"}
_STAGES = {"table5": ("cifar10", (1, 2, 3, 4)), "table6": ("cifar100", (3, 4))}


def _of_blocks() -> Iterator[tuple[str, Callable[[], float]]]:
    """What the factorized net saves, and what Table 3's server gains over the ensemble of all base nets."""
    for data, level, server, ensemble in (("10", "1/8", "11.17M", "12.33M"), ("100", "1/12", "21.33M", "23.97M")):
        for key, name in (("iid", "IID"), ("noniid", "Non-IID")):
            block, of = f"CIFAR-{data} {name}", f"cifar{data}_{key}"
            yield f"saved_bytes_{of}", partial(_saved_bytes, f"saved_bytes_{of}", block, level)
            yield f"saved_macs_{of}", partial(_saved_macs, block, level)
            places = (f"table3/{block}/FedHM/{server}", f"table3/{block}/Split-Mix/{ensemble}")
            yield f"gain_{of}", partial(_gain, *places)


CHECKS = Checks(
    facts={
        **{f"table1_{fact}_params": partial(_layer, kind, "params") for fact, kind in _LAYERS.items()},
        **{f"table1_{fact}_macs": partial(_layer, kind, "macs") for fact, kind in _LAYERS.items()},
        "rho_resnet18": lambda: _dense_convs(_fedhm("cifar10")),
        "rho_resnet34": lambda: _dense_convs(_fedhm("cifar100")),
        **{
            f"{table}_layer{number}": partial(_factorized, data, number - 1)
            for table, (data, stages) in _STAGES.items()
            for number in stages
        },
        **{f"samples_{data}": partial(_samples, data) for data in ("cifar10", "cifar100", "tinyimagenet")},
        **{f"heterofl_rate_{data}": partial(_second_width, data) for data in ("cifar10", "cifar100")},
        **{f"macs_resnet34_{name}": partial(_macs, "cifar100", level) for name, level in _LEVELS.items()},
        "params_resnet34_12th": lambda: _costs("cifar100", "1/12").params,
        "later_params_resnet18": lambda: _share_of_later_stages("cifar10", "Params"),
        "later_params_resnet34": lambda: _share_of_later_stages("cifar100", "Params"),
        "later_macs_resnet34": lambda: _share_of_later_stages("cifar100", "MACs"),
        "reduction_high": lambda: _reduction("cifar10", "1/8"),
        "reduction_low": lambda: _reduction("cifar100", "1/12"),
        "reduction_compute": lambda: _macs("cifar100", "Original") / _macs("cifar100", "1/8"),
        **{f"two_percent_{data}": partial(_two_percent, data) for data in ("cifar10", "cifar100")},
        "communication_cost": lambda: _run_costs(lambda found: found.plan.bytes_per_run / costs.FLOAT32_BYTES),
        "computation_cost": lambda: _run_costs(lambda found: found.plan.training_macs_per_run),
        **dict(_of_blocks()),
        "gain_smallest_iid": lambda: _gain(_SMALLEST, "table2/CIFAR-100 IID/HeteroFL/3.42M"),
    },
    cells={"figure7": _stage, "figure4a": _communication_bar, "figure4b": _computation_bar},
    readings={
        "CIFAR-10 Split-Mix 12.33M": _nine_times_rounded,
        "CIFAR-100 FedHM 3.27M": _cut_off,
        "CIFAR-100 Low Rank Model 3.27M": _cut_off,
        "macs_resnet34_12th": _macs_of_ranks_cut_off,
        "reduction_low": lambda: int(10 * _reduction("cifar100", "1/12")) / 10,  # cut off
        "gain_smallest_iid": lambda: _gain(_SMALLEST, "table2/CIFAR-100 IID/HeteroFL/8.77M"),
    },
)
