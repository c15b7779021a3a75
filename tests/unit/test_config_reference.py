"""configs/: every file is valid, the reference is what the schema says, and loading stays light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedmpi.config.load import load
from fedmpi.config.reference import reference

CONFIGS = Path(__file__).parents[2] / "configs"


def test_readme_is_what_the_schema_says() -> None:
    text = (CONFIGS / "README.md").read_text(encoding="utf-8")
    assert text == reference(), "run: python -m fedmpi.config.reference > configs/README.md"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_config_is_valid_and_says_what_it_is(path: Path) -> None:
    config = load(path, [])
    assert config.seed == 0
    assert config.data.name in path.stem
    assert path.read_text().startswith("# ")


def test_summaries_and_lists_read_as_sentences() -> None:
    text = reference()
    assert "\nA multi-layer perceptron" in text and "a list of 0 to 8 whole numbers >= 1" in text
    assert "None" not in text


def test_the_papers_setting() -> None:
    """methods.md 1: 20 clients, 10 a round, 160 rounds with milestones 100 and 150, batch 64, 10 epochs, lr 0.1."""
    config = load(CONFIGS / "fedhm" / "table3.yaml@cifar10_noniid_fedhm", [])
    assert (config.rounds, config.train.schedule.milestones, config.train.schedule.factor) == (160, (100, 150), 0.1)
    assert (config.clients.count, config.clients.per_round) == (20, 10)
    assert (config.train.batch_size, config.train.local_epochs, config.train.lr) == (64, 10, 0.1)
    assert (config.train.momentum, config.train.weight_decay) == (0.9, 1e-4)
    assert config.method.rank_ratio == (1.0, 0.5, 0.25, 0.125)
    assert (config.model.name, config.model.width, config.partition.alpha) == ("resnet18", 1.0, 0.5)
    dynamic = load(CONFIGS / "fedhm" / "table2.yaml@cifar10_noniid_fedhm", [])
    assert dynamic.diff(config.to_dict()) == ["clients.tier_assignment: run has 'fixed', you ask 'dynamic'"]


def test_the_default_becomes_the_papers_net_by_name() -> None:
    config = load(None, ["model.name=resnet18", "data.name=cifar10"])
    assert (config.model.width, config.model.blocks) == (1.0, (2, 2, 2, 2))
    assert load(None, ["method.name=fedavg"]).method.name == "fedavg"


def test_validation_loads_neither_torch_nor_mpi() -> None:
    program = (
        "import sys, time; start = time.perf_counter()\n"
        "from fedmpi.config.load import load\n"
        "load(None, ['train.lr=1e-3'])\n"
        "heavy = {'torch', 'mpi4py', 'torchvision', 'sklearn', 'h5py'} & set(sys.modules)\n"
        "print(sorted(heavy), time.process_time() < 4)\n"
    )
    root = CONFIGS.parent
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=root, check=True
    )
    assert done.stdout.strip() == "[] True"
