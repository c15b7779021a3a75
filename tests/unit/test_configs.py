"""The papers' experiments in `configs/papers`: hyper-parameters by hand, what they resolve to, and their plans."""

import hashlib
import json
import re
from functools import cache

import pytest
from fast import fast

from fedmpi import methods
from fedmpi.config.address import CONFIGS
from fedmpi.config.schema import Config
from fedmpi.federation.tiers import tier_blocks
from fedmpi.results import grid_file, printed
from fedmpi.results.grid_file import load_address
from fedmpi.rounds.state import reestimates
from fedmpi.running.forecast import forecast
from fedmpi.running.start import method_context

DIGESTS = {
    "fedhm": (116, "685cda71b9610e9f"),
    "prism": (139, "8f3918bf0de6f443"),
    "hermes": (61, "f75df4cdca95dbac"),
    "fdnnc": (47, "7bf3a02419e7e17e"),
}
"""By paper: how many runs it has, and the digest of all that their configs set."""


@cache
def config(run: str) -> Config:
    """Of a run, `fedhm.yaml@cifar10_iid/fedhm`, or of a file that is shipped."""
    return load_address(f"{CONFIGS}/papers/{run}" if "@" in run else f"{CONFIGS}/{run}")


@cache
def runs_of(paper: str) -> list[str]:
    """The runs that the paper's tables and figures need."""
    content = grid_file.read(CONFIGS / "papers" / f"{paper}.yaml")
    return [f"{paper}.yaml@{run}" for run in printed.runs(content.printed)]


RUNS = [run for paper in DIGESTS for run in runs_of(paper)]


@pytest.mark.parametrize("paper", DIGESTS)
def test_the_resolved_configs_are_those_of_the_digest(paper: str) -> None:
    """What differs from the schema's defaults, so that an option that no config sets may come and go. Names of the runs
    do not count. A change must be meant: then replace the digest, and say in the commit what changed."""
    texts = []
    for run in runs_of(paper):
        sections = config(run)
        names = {key: getattr(sections, key).name for key in ("data", "partition", "model", "method")}
        texts.append(json.dumps([names, sections.model_dump(mode="json", exclude_defaults=True)], sort_keys=True))
    digest = hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()
    assert (len(texts), digest[:16]) == DIGESTS[paper]


def test_no_two_runs_are_the_same() -> None:
    by_hash: dict[tuple[str, int], list[str]] = {}
    for run in RUNS:
        by_hash.setdefault((config(run).hash(), config(run).rounds), []).append(run)
    assert [same for same in by_hash.values() if len(same) > 1] == []


PARTITIONS = {
    "fedhm cifar.*_iid": {"name": "iid"},
    "fedhm tinyimagenet_iid": {"name": "iid", "shuffle": True},  # its files are sorted by class
    "fedhm .*_noniid": {"name": "dirichlet_feddf", "alpha": 0.5},
    "prism .*_iid": {"name": "iid", "shuffle": True},
    "prism .*_alpha1": {"name": "dirichlet_equal", "alpha": 1.0},
    "prism .*_alpha01": {"name": "dirichlet_equal", "alpha": 0.1},
    "hermes cifar10": {"name": "lottery"},
    "fdnnc cifar10": {"name": "iid", "shuffle": True},
}


@pytest.mark.parametrize("paper", DIGESTS)
def test_runs_are_what_their_names_say(paper: str) -> None:
    """The digest does not look at names, by which cells of tables find their runs."""
    names = {"slim": "fedavg", "lowrank": "fedhm", "twopercent": "fedhm", "full": "fedavg", "o2": "prism"}
    for run in runs_of(paper):
        _, setting, method = re.split(r"\.yaml@|/", run)
        found, data, first = config(run), setting.partition("_")[0], method.partition("_")[0]
        assert (found.data.name, found.method.name) == (data, names.get(first, paper if paper == "fdnnc" else first))
        place = re.sub(r"_(dynamic|epochs\d+|active\d+|timed)$", "", setting)
        key = f"{paper} {place if paper in ('fedhm', 'prism') else data}"
        promised = next((of for pattern, of in PARTITIONS.items() if re.fullmatch(pattern, key)), {"name": "natural"})
        assert {name: getattr(found.partition, name) for name in promised} == promised
        if paper == "fedhm":
            assert found.clients.tier_assignment == ("dynamic" if setting.endswith("_dynamic") else "fixed")
        if paper == "fdnnc":
            assert method == f"{found.method.pattern}_{found.method.upload}_{100 * found.method.big_share:g}"
        if paper == "prism" and (share := re.search(r"_0([2468])$", method)):
            assert found.method.keep_ratio == (int(share[1]) / 10,)


PLANNED = list(dict.fromkeys([*(runs_of(paper)[20] for paper in DIGESTS), *RUNS[::12]]))
SHIPPED = [path.name for path in sorted(CONFIGS.glob("*.yaml"))]


@pytest.mark.parametrize(
    "name", [*fast(PLANNED[1], of=PLANNED, slow=PLANNED[:4]), *fast(of=SHIPPED, slow=SHIPPED[::3])]
)
def test_plan(name: str) -> None:
    found = config(name)
    ours = forecast(found, 5)
    assert ours.rounds == found.rounds
    assert sum(tier.clients for tier in ours.tiers) == found.clients.count
    # Not every keep ratio of PriSM's LSTM saves parameters.
    assert all("makes it smaller" in line for line in ours.warnings) or name in SHIPPED
    assert ours.training_macs_per_run > 0
    assert (ours.bytes_per_run > 0) == (found.method.name != "standalone")


# Hyper-parameters, typed out of the papers.


def sgd(of: Config) -> tuple[float, ...]:
    """Local epochs, batch size, learning rate, momentum, weight decay."""
    train = of.train
    return train.local_epochs, train.batch_size, train.lr, train.momentum, train.weight_decay


@pytest.mark.parametrize(
    ("data_set", "model", "rounds", "milestones"),
    [
        ("cifar10", "resnet18", 160, (100, 150)),
        ("cifar100", "resnet34", 100, (70, 90)),
        ("tinyimagenet", "resnet34", 60, (40, 55)),
    ],
)
def test_fedhm_table_4(data_set: str, model: str, rounds: int, milestones: tuple[int, ...]) -> None:
    of = config(f"fedhm.yaml@{data_set}_noniid/fedhm")
    assert (of.rounds, of.model.name, of.model.width) == (rounds, model, 1.0)
    assert (of.clients.count, of.clients.per_round, tier_blocks(of)) == (20, 10, (5, 5, 5, 5))
    assert sgd(of) == (10, 64, 0.1, 0.9, 1e-4)
    schedule = of.train.schedule
    assert (schedule.name, schedule.milestones, schedule.factor) == ("step", milestones, 0.1)
    assert of.train.masked_loss and of.evaluation.bn == "milestone" and of.evaluation.every == 1
    assert not reestimates(of, milestones[0]) and reestimates(of, milestones[0] + 1), "rounds greater than it (C.2)"
    assert (of.method.rank_ratio, of.method.tau) == ((1, 0.5, 0.25, 0.125), "auto")


def test_fedhm_s_baselines() -> None:
    two = config("fedhm.yaml@cifar100_noniid_dynamic/heterofl_v2_resnet34")
    assert (two.method.widths, two.clients.tier_blocks) == ((0.64, 0.5, 0.4), (10, 5, 5))
    mix = config("fedhm.yaml@tinyimagenet_iid/splitmix_resnet34").method
    assert (mix.atom, mix.levels) == (0.4, (2.8, 1.2, 0.8, 0.4))


def test_prism_tables_7_8_9() -> None:
    of = config("prism.yaml@cifar10_alpha1/prism_02")
    assert (of.rounds, of.clients.count, of.clients.per_round) == (1000, 100, 20)
    assert sgd(of) == (2, 32, 0.1, 0.9, 2e-4) and of.model.name == "resnet18"
    assert of.train.schedule.name == "cosine" and of.train.augment and not of.train.masked_loss
    assert (of.method.keep_ratio, of.method.kappas) == ((0.2,), (4.0,))
    assert config("prism.yaml@cifar10_alpha1/o2").method.o2
    mixed = config("prism.yaml@cifar10_iid/prism_mixed")
    assert (mixed.method.keep_ratio, mixed.method.kappas, tier_blocks(mixed)) == ((0.4, 0.2), (2.5, 4.0), (40, 60))
    writers = config("prism.yaml@femnist/prism_kappa_02")
    assert (writers.rounds, sgd(writers)) == (100, (2, 32, 0.01, 0.9, 2e-4))
    assert (writers.train.augment, writers.method.kappas) == (False, (2.5,))
    assert (writers.partition.groups_per_client, writers.clients.count) == (10, 100)
    reviews = config("prism.yaml@imdb_alpha01/origdrop_02")
    assert (reviews.rounds, sgd(reviews)) == (300, (2, 32, 0.1, 0.9, 2e-4))
    assert reviews.data.info().num_train == 100 * 375


def test_prism_figure_9_has_as_many_epochs_in_all() -> None:
    varied = [config(run) for run in RUNS if "_epochs" in run]
    assert {of.rounds * of.train.local_epochs for of in varied} == {2000} and len(varied) == 24


def test_hermes_section_5_2() -> None:
    of = config("hermes.yaml@cifar10/hermes")
    assert (of.clients.count, of.clients.per_round, of.rounds, of.model.name) == (400, 20, 500, "vgg16")
    assert (of.train.local_epochs, of.train.batch_size) == (5, 16)
    method = of.method
    assert (method.prune_rate, method.target_share, method.accuracy_threshold) == (0.2, 0.3, 0.5)
    assert config("hermes.yaml@cifar10/topk").method.ratio == 0.1
    assert config("hermes.yaml@femnist/fedavg").clients.count == 2414
    assert config("hermes.yaml@har/fedavg").clients.count == 30
    assert all(config(run).evaluation.personal == "on" for run in runs_of("hermes"))


def test_fdnnc_section_4() -> None:
    of = config("fdnnc.yaml@cifar10/bfirst_half_50")
    assert (of.model.name, of.clients.count, of.clients.per_round) == ("alexnet", 200, 20)
    assert (of.method.pattern, of.method.upload, of.method.switch_round) == ("bfirst", "half", 400)
    assert (of.train.weight_decay, of.train.masked_loss, tier_blocks(of)) == (0.0, False, (100, 100))
    writers = config("fdnnc.yaml@femnist/switch_full_50")
    assert (writers.clients.count, writers.clients.per_round, writers.data.used().num_test) == (900, 90, 10_000)


# What tables of the papers hold, by their own words.


def test_every_table_and_figure_of_the_papers_that_needs_runs_is_there() -> None:
    tables = {paper: grid_file.read(CONFIGS / "papers" / f"{paper}.yaml").printed for paper in DIGESTS}
    prism = "figure1 figure10 figure4 figure5 figure6 figure7 figure8 figure9"
    hermes = "figure10 figure11 figure2 figure6 figure7 figure7_cost figure8 figure9 other_data section2_2"
    assert {paper: " ".join(sorted(names)) for paper, names in tables.items()} == {
        "fedhm": "ablation figure2 figure3 figure4a figure4b figure8 table2 table3 table7 table8",
        "prism": f"{prism} qmnist section4_1 table11 table2 table3",
        "hermes": f"{hermes} section5_5a section5_5b table2a table2b",
        "fdnnc": "dynamic figure5 figure5g figure6 figure6g qmnist table3 table4",
    }


VALUES = [
    ("fedhm", "table2", "CIFAR-10 IID", "FedHM", "4.16M", "93.52", "cifar10_iid_dynamic/fedhm", "0.5"),
    ("fedhm", "table3", "CIFAR-10 IID", "FedHM", "11.17M", "93.46", "cifar10_iid/fedhm", "1"),
    ("fedhm", "table3", "CIFAR-10 IID", "Split-Mix", "1.37M", "88.30", "cifar10_iid/splitmix_resnet18", "0.35"),
    ("fedhm", "table7", "CIFAR-10 Non-IID", "FedHM-V2", "1.24M", "91.25", "cifar10_noniid/fedhm_v2", "0.125"),
    ("fedhm", "table8", "Tiny-ImageNet IID", "Low Rank Model", "5.04M", "57.27", "tinyimagenet_iid/lowrank_4", "0.25"),
    ("prism", "table2", "CIFAR-10", "PriSM", "non-i.i.d (0.1)", "82.58", "cifar10_alpha01/prism_mixed", "server"),
    ("prism", "table11", "time", "sub-model", "0.6", "23.53", "cifar10_iid_timed/prism_cut_06", "local_training"),
    ("hermes", "table2a", "IC-EMNIST", "Accuracy", "0.5", "91.35", "femnist/hermes_05", "clients"),
    ("hermes", "section5_5b", "HAR", "Per-FedAvg", "HAR", "3.48", "har/perfedavg", "clients"),
    ("hermes", "figure9", "IC-CIFAR10", "balance rate 0.5", "20", "83.67", "cifar10_20_50/hermes", "clients"),
    ("fdnnc", "table3", "SWITCH-HALF", "50%", "B-ACC", "0.6444", "cifar10/switch_half_50", "big"),
    ("fdnnc", "table4", "BOTH-FULL", "100%", "S-ACC", "0.8946", "femnist/both_full_100", "small"),
]


@pytest.mark.parametrize(("paper", "table", "block", "column", "row", "value", "run", "net"), VALUES)
def test_values_as_the_papers_print_them(
    paper: str, table: str, block: str, column: str, row: str, value: str, run: str, net: str
) -> None:
    cells = printed.cells_of(grid_file.read(CONFIGS / "papers" / f"{paper}.yaml").printed, table)
    [cell] = [cell for cell in cells if (cell.block, cell.column, cell.row) == (block, column, row)]
    assert (cell.value, cell.run, cell.net) == (value, run, net)


@pytest.mark.parametrize("paper", DIGESTS)
def test_cells_name_nets_that_their_runs_test(paper: str) -> None:
    tables = grid_file.read(CONFIGS / "papers" / f"{paper}.yaml").printed
    for name, table in tables.items():
        if table.quantity in ("accuracy", "accuracy_drop", "bytes_to_target", "macs_to_target"):
            for cell in printed.cells_of(tables, name):
                method = config(f"{paper}.yaml@{cell.run}").method
                names = names_of_its_own(method.name) or {f"{tier:g}" for tier in method.tiers}
                assert cell.net in names | {"clients"}, cell


@cache
def names_of_its_own(method: str) -> set[str]:
    """What a method calls its tested nets where these are not its tiers; it does so on any data."""
    of = load_address(f"{CONFIGS}/{method}_digits.yaml", ["model.name=mlp", "model.hidden=[16,16]"])
    names = {net.name for net in methods.create(method_context(of, of.data.info())).tested()}
    return names - {f"{tier:g}" for tier in of.method.tiers}
