"""The papers' experiments in `configs/`: each is what its name says, passes `--plan`, and repeats no other."""

from __future__ import annotations

import itertools
import json
import re
from functools import cache
from pathlib import Path

import pytest
from torch import nn

from fedmpi import costs, methods
from fedmpi.config import yaml_text
from fedmpi.config.load import load
from fedmpi.config.schema import Config
from fedmpi.run.forecast import Forecast, forecast
from fedmpi.run.start import blocks, check_model, method_context

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
PAPERS = {"fedhm": "FedHM", "prism": "PriSM", "hermes": "Hermes", "fdnnc": "FDNNC"}
BASES = sorted(CONFIGS.glob("*/base_*.yaml"))
EXPERIMENTS = [path for path in CONFIGS.glob("*/*.yaml") if path not in BASES]
NAMES = sorted(path.relative_to(CONFIGS).with_suffix("").as_posix() for path in EXPERIMENTS)
# A table's or figure's own data, distribution and column; or what stands in for data that cannot be had.
NAME = re.compile(r"(?:(?:table|figure)\d+_)?(?P<data>[a-z]+\d*)_(?:(?P<dist>[a-z]+\d*)_)?(?P<column>[a-z0-9_]+)")

PARTITIONS = {
    "fedhm iid": {"name": "iid"},
    "fedhm noniid": {"name": "dirichlet_feddf", "alpha": 0.5},
    "prism iid": {"name": "iid", "shuffle": True},
    "prism alpha1": {"name": "dirichlet_equal", "alpha": 1.0},
    "prism alpha01": {"name": "dirichlet_equal", "alpha": 0.1},
    "prism noniid": {"name": "dirichlet_equal", "alpha": 0.1},
    "hermes noniid": {"name": "lottery", "classes_per_client": 2},
    "fdnnc iid": {"name": "iid", "shuffle": True},
    "natural": {"name": "natural"},
}
COLUMNS = {
    "heterofl_v2": "heterofl", "heterofl_v3": "heterofl", "fedhm_v2": "fedhm", "fedhm_v3": "fedhm", "lowrank": "fedhm",
    "twopercent": "fedhm", "slim": "fedavg", "baseline": "fedavg", "full": "fedavg", "o2": "prism", "both": "fdnnc",
    "bfirst": "fdnnc", "switch": "fdnnc",
}  # fmt: skip


@cache
def config_of(name: str) -> Config:
    return load(CONFIGS / f"{name}.yaml", [])


def comment_of(path: Path) -> str:
    lines = path.read_text().splitlines()
    return " ".join(line[2:] for line in lines if line.startswith("# "))


def bases_of(path: Path) -> set[Path]:
    """The files that a file extends, and those that these extend."""
    extended = (yaml_text.parse(path.read_text()).value or {}).get("extends", [])
    direct = {path.parent / base for base in ([extended] if isinstance(extended, str) else extended)}
    return direct.union(*map(bases_of, direct))


# What a name promises.


@pytest.mark.parametrize("name", NAMES)
def test_a_config_is_what_its_name_says(name: str) -> None:
    config, (paper, _, stem) = config_of(name), name.partition("/")
    found = NAME.fullmatch(stem)
    assert found, "no <table or figure>_<data>_<distribution>_<column>"
    assert config.data.name == found["data"]
    column = found["column"].removesuffix("_full").removesuffix("_half")
    if name != "prism/figure6_cifar10_iid_full":  # full-model training in which singular values can be looked at
        assert config.method.name == COLUMNS.get(column, column)
    distribution = found["dist"] or "natural"
    promised = PARTITIONS.get(f"{paper} {distribution}", PARTITIONS["natural"])
    if paper == "fedhm":
        assert config.clients.tier_assignment == ("dynamic" if stem.startswith("table2") else "fixed")
        if (found["data"], distribution) == ("tinyimagenet", "iid"):
            promised = promised | {"shuffle": True}  # its files are sorted by class
    if paper == "fdnnc":
        assert config.method.pattern == column
        assert config.method.upload == ("full" if stem.endswith("_full") else "half")
    assert {key: getattr(config.partition, key) for key in promised} == promised


ROW_FAMILIES = """
fedhm/table3_{cifar10,cifar100,tinyimagenet}_{iid,noniid}_{splitmix,heterofl,heterofl_v2,heterofl_v3,fedavg,fedhm}
fedhm/table2_{cifar10,cifar100,tinyimagenet}_{iid,noniid}_{splitmix,heterofl,heterofl_v2,heterofl_v3,fedhm}
fedhm/table8_{cifar10,cifar100,tinyimagenet}_{iid,noniid}_{slim,lowrank}
fedhm/table7_cifar10_{iid,noniid}_{fedhm_v2,fedhm_v3}
fedhm/figure8_{cifar10,cifar100}_{iid,noniid}_twopercent
prism/table2_cifar10_{iid,alpha1,alpha01}_{baseline,origdrop,orthdrop,prism}
prism/figure4_cifar10_{iid,alpha1,alpha01}_{prism,o2,origdrop,orthdrop}
prism/{figure5_femnist_natural,qmnist_writers,figure8_imdb_iid,figure8_imdb_noniid}_{full,prism,orthdrop,origdrop}
prism/{figure9,figure10}_cifar10_{iid,alpha01}_{full,prism}
prism/table11_cifar10_iid_{full,prism}
prism/figure6_cifar10_iid_full
hermes/figure7_{cifar10_noniid,femnist_natural,har_natural}_{hermes,fedavg,lgfedavg,perfedavg,topk,standalone}
hermes/{qmnist_writers,har_windows}_{hermes,fedavg,lgfedavg,perfedavg,topk,standalone}
hermes/figure8_{cifar10_noniid,femnist_natural}_hermes
hermes/figure9_cifar10_noniid_hermes
fdnnc/{table3_cifar10_iid,table4_femnist_natural}_{both,bfirst,switch}_{full,half}
fdnnc/qmnist_{both,bfirst,switch}
"""


def expanded(pattern: str) -> list[str]:
    """`a_{b,c}` as a shell does."""
    choices = [part.split(",") for part in re.split(r"[{}]", pattern)]
    return ["".join(parts) for parts in itertools.product(*choices)]


def test_each_of_the_papers_row_families_has_a_file() -> None:
    assert sorted(name for pattern in ROW_FAMILIES.split() for name in expanded(pattern)) == NAMES


# What comments and bases promise.


@pytest.mark.parametrize("name", NAMES)
def test_the_comment_names_the_paper_and_the_overrides_in_it_work(name: str) -> None:
    path = CONFIGS / f"{name}.yaml"
    comment, paper = comment_of(path), name.partition("/")[0]
    assert comment.startswith(f"{PAPERS[paper]} (")
    assert re.search(r"\b(Table|Tables|Fig\.|Figs\.) [\dIVX]", comment)
    number = re.match(r"\w+/(table|figure)(\d+)_", name)
    if number and paper != "fdnnc":  # whose tables have Roman numbers
        assert re.search(rf"\b(Tables?|Figs?\.)(?: [\d, and]*)? {number[2]}\b", comment)
    others = re.findall(r"\w+\.yaml", comment)
    assert all((path.parent / other).is_file() for other in others), others
    for override in re.findall(r"(?<!\S)[a-z_.]+=[^\s,;]+(?<![.:])", comment):
        other = load(path, [override])
        assert other.hash() != config_of(name).hash() or override == "rounds=2000", f"{override} changes nothing"


def test_bases_are_used_and_say_why_they_are() -> None:
    assert [path.name for path in BASES if not comment_of(path)] == []
    used = set().union(*(bases_of(CONFIGS / f"{name}.yaml") for name in NAMES))
    assert [str(path.relative_to(CONFIGS)) for path in BASES if path not in used] == []


def test_a_file_says_nothing_that_another_one_says_for_it() -> None:
    """An experiment is a line of bases and its own peculiarity, at most four lines beside its comment."""
    for name in NAMES:
        lines = (CONFIGS / f"{name}.yaml").read_text().splitlines()
        said = [line for line in lines if not line.startswith("# ")]
        assert said[0].startswith("extends: ") and len(said) <= 4, name


def test_no_two_experiments_are_the_same() -> None:
    by_hash: dict[str, list[str]] = {}
    for name in NAMES:
        by_hash.setdefault(config_of(name).hash(), []).append(name)
    assert [same for same in by_hash.values() if len(same) > 1] == []


# `--plan`, once for experiments that differ in their partition alone: a plan depends on its mean size only.


def group_key(name: str) -> str:
    plain = config_of(name).to_dict()
    mean_examples = config_of(name).partition.mean_examples(config_of(name).data.info(), plain["clients"]["count"])
    return json.dumps([{key: value for key, value in plain.items() if key != "partition"}, mean_examples])


@cache
def groups() -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for name in NAMES:
        grouped.setdefault(group_key(name), []).append(name)
    return {names[0]: names for names in grouped.values()}


@cache
def plan(name: str) -> Forecast:
    config = config_of(name)
    info = config.data.info()
    check_model(config, info)
    return forecast(config, 5, info, methods.create(method_context(config, info)), blocks(config))


@pytest.fixture
def quick_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nets of the same modules cost the same, and what has no values needs no initial ones."""
    monkeypatch.setattr(costs, "measure", measure)
    for name in ("kaiming_normal_", "kaiming_uniform_"):
        monkeypatch.setattr(nn.init, name, lambda weight, *_, **__: weight)


MEASURE = costs.measure
MEASURED: dict[tuple[str, tuple[int, ...]], costs.Costs] = {}


def measure(net: nn.Module, example_shape: tuple[int, ...]) -> costs.Costs:
    key = (repr(net), example_shape)
    if key not in MEASURED:
        MEASURED[key] = MEASURE(net, example_shape)
    return MEASURED[key]


@pytest.mark.parametrize("name", groups())
@pytest.mark.usefixtures("quick_plans")
def test_plan(name: str) -> None:
    ours, config = plan(name), config_of(name)
    assert ours.rounds == config.rounds and ours.exact_cohorts
    assert sum(tier.clients for tier in ours.tiers) == config.clients.count
    assert ours.warnings == () and ours.training_macs_per_run > 0
    assert (ours.bytes_per_run > 0) == (config.method.name != "standalone")


MILLIONS_OF_FEDHM = {  # as printed; the slips are 3.27 (3.28) and Split-Mix's 12.33, 10.22, 6.81 (12.36, 10.27, 6.85)
    "table3_cifar10_iid_fedhm": [11.17, 4.16, 2.21, 1.24], "table3_cifar100_iid_fedhm": [21.33, 8.40, 4.99, 3.28],
    "table3_tinyimagenet_iid_fedhm": [21.38, 8.45, 5.04, 3.33],
    "table3_cifar10_iid_heterofl": [11.17, 4.29, 2.80, 1.37], "table2_cifar10_iid_heterofl_v2": [4.29, 2.80, 1.37],
    "table3_cifar10_iid_heterofl_v3": [2.80, 1.37], "table3_cifar100_iid_heterofl": [21.33, 8.77, 5.35, 3.42],
    "table3_tinyimagenet_iid_heterofl": [21.38, 8.80, 5.38, 3.44], "table3_cifar10_iid_fedavg": [1.37],
    "table3_cifar100_iid_fedavg": [3.42], "table3_cifar10_iid_splitmix": [12.36, 4.12, 2.75, 1.37],
    "table3_cifar100_iid_splitmix": [23.97, 10.27, 6.85, 3.42], "table7_cifar10_iid_fedhm_v2": [4.16, 2.21, 1.24],
    "table7_cifar10_iid_fedhm_v3": [2.21, 1.24], "table8_cifar10_iid_slim": [11.17],
    "table8_cifar10_iid_lowrank": [1.24],
    "figure8_cifar10_iid_twopercent": [0.25], "figure8_cifar100_iid_twopercent": [0.37],
}  # fmt: skip


@pytest.mark.parametrize("name", MILLIONS_OF_FEDHM)
@pytest.mark.usefixtures("quick_plans")
def test_sizes_that_fedhm_prints(name: str) -> None:
    params = [tier.params / 1e6 for tier in plan(f"fedhm/{name}").tiers]
    assert [round(size, 2) for size in params] == MILLIONS_OF_FEDHM[name]


# Hyper-parameters, typed out of the papers.


def sgd(config: Config) -> tuple[float, ...]:
    """Local epochs, batch size, learning rate, momentum, weight decay."""
    train = config.train
    return train.local_epochs, train.batch_size, train.lr, train.momentum, train.weight_decay


@pytest.mark.parametrize(
    ("data_set", "model", "rounds", "milestones"),
    [("cifar10", "resnet18", 160, (100, 150)), ("cifar100", "resnet34", 100, (70, 90)),
     ("tinyimagenet", "resnet34", 60, (40, 55))],
)  # fmt: skip
def test_fedhm_table_4(data_set: str, model: str, rounds: int, milestones: tuple[int, ...]) -> None:
    config = config_of(f"fedhm/table3_{data_set}_noniid_fedhm")
    assert (config.rounds, config.model.name, config.model.width) == (rounds, model, 1.0)
    assert (config.clients.count, config.clients.per_round, blocks(config)) == (20, 10, (5, 5, 5, 5))
    train = config.train
    assert sgd(config) == (10, 64, 0.1, 0.9, 1e-4)
    assert (train.schedule.name, train.schedule.milestones, train.schedule.factor) == ("step", milestones, 0.1)
    assert train.masked_loss and config.evaluation.bn == "milestone" and config.evaluation.every == 1
    assert (config.method.rank_ratio, config.method.tau) == ((1, 0.5, 0.25, 0.125), "auto")


def test_fedhm_s_baselines() -> None:
    two = config_of("fedhm/table2_cifar100_noniid_heterofl_v2")
    assert (two.method.widths, two.clients.tier_blocks) == ((0.64, 0.5, 0.4), (10, 5, 5))
    assert two.clients.tier_assignment == "dynamic"
    mix = config_of("fedhm/table3_tinyimagenet_iid_splitmix").method
    assert (mix.atom, mix.levels) == (0.4, (2.8, 1.2, 0.8, 0.4))


def test_prism_tables_7_8_9() -> None:
    config = config_of("prism/figure4_cifar10_alpha1_prism")
    assert (config.rounds, config.clients.count, config.clients.per_round) == (1000, 100, 20)
    assert sgd(config) == (2, 32, 0.1, 0.9, 2e-4) and config.model.name == "resnet18"
    assert config.train.schedule.name == "cosine" and config.train.augment and not config.train.masked_loss
    assert (config.method.keep_ratio, config.method.kappas) == ((0.2,), (4.0,))
    assert config_of("prism/figure4_cifar10_alpha1_o2").method.o2
    mixed = config_of("prism/table2_cifar10_iid_prism")
    assert (mixed.method.keep_ratio, mixed.method.kappas, blocks(mixed)) == ((0.4, 0.2), (2.5, 4.0), (40, 60))
    writers = config_of("prism/figure5_femnist_natural_prism")
    assert (writers.rounds, sgd(writers)) == (100, (2, 32, 0.01, 0.9, 2e-4))
    assert (writers.train.augment, writers.method.kappas) == (False, (2.5,))
    assert (writers.partition.groups_per_client, writers.clients.count) == (10, 100)
    reviews = config_of("prism/figure8_imdb_noniid_origdrop")
    assert (reviews.rounds, sgd(reviews)) == (300, (2, 32, 0.1, 0.9, 2e-4))
    assert reviews.data.info().num_train == 100 * 375


@pytest.mark.parametrize("name", [name for name in NAMES if "figure9_cifar10_" in name and name.startswith("prism")])
def test_prism_figure_9_has_as_many_epochs_in_all(name: str) -> None:
    for overrides in ([], ["rounds=2000", "train.local_epochs=1"], ["rounds=200", "train.local_epochs=10"]):
        config = load(CONFIGS / f"{name}.yaml", overrides)
        assert config.rounds * config.train.local_epochs == 2000


def test_hermes_section_5_2() -> None:
    config = config_of("hermes/figure7_cifar10_noniid_hermes")
    assert (config.clients.count, config.clients.per_round, config.rounds, config.model.name) == (400, 20, 500, "vgg16")
    assert (config.train.local_epochs, config.train.batch_size) == (5, 16)
    method = config.method
    assert (method.prune_rate, method.target_share, method.accuracy_threshold) == (0.2, 0.3, 0.5)
    assert config_of("hermes/figure7_cifar10_noniid_topk").method.ratio == 0.1
    assert config_of("hermes/figure7_femnist_natural_fedavg").clients.count == 2414
    assert config_of("hermes/figure7_har_natural_fedavg").clients.count == 30
    assert all(config_of(name).evaluation.personal == "on" for name in NAMES if name.startswith("hermes/"))


def test_fdnnc_section_4() -> None:
    config = config_of("fdnnc/table3_cifar10_iid_bfirst_half")
    assert (config.model.name, config.clients.count, config.clients.per_round) == ("alexnet", 200, 20)
    assert (config.method.pattern, config.method.upload, config.method.switch_round) == ("bfirst", "half", 400)
    assert (config.train.weight_decay, config.train.masked_loss, blocks(config)) == (0.0, False, (100, 100))
    writers = config_of("fdnnc/table4_femnist_natural_switch_full")
    assert (writers.clients.count, writers.clients.per_round, writers.data.info().num_test) == (900, 90, 10_000)
    assert (writers.method.pattern, writers.method.upload) == ("switch", "full")
