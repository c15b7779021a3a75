"""Files that extend others: what wins, how names reset sections, where problems are said to stand."""

from pathlib import Path

import pytest
from data_fixtures import refusal

from fedmpi.config.address import file_and_cell, is_address, label
from fedmpi.config.load import load
from fedmpi.config.schema import Config
from fedmpi.errors import ConfigError

BASE = """\
seed: 4
data: {name: digits}
method: {name: fedhm, tau: 2, rank_ratio: [1, 0.25]}
train:
  lr: 0.3
  schedule: {name: step, milestones: [3]}
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "base.yaml").write_text(BASE)
    return tmp_path


def read(folder: Path, text: str, *overrides: str, name: str = "sub/a.yaml") -> Config:
    (folder / name).write_text(text)
    return load(str(folder / name), overrides)


def test_what_a_file_says_goes_on_top(files: Path) -> None:
    config = read(files, "extends: ../base.yaml\nseed: 5\ntrain: {momentum: 0.5}\nmethod: {tau: 3}")
    assert (config.seed, config.train.lr, config.train.momentum) == (5, 0.3, 0.5)
    assert (config.method.tau, config.method.rank_ratio) == (3.0, (1.0, 0.25))
    assert config.train.schedule.milestones == (3,)
    assert "extends" not in config.to_dict()


def test_another_name_empties_the_section(files: Path) -> None:
    """As on the command line: fedavg has no tau, and the cosine no milestones."""
    config = read(files, "extends: ../base.yaml\nmethod: {name: fedavg}\ntrain: {schedule: {name: cosine}}")
    assert config.method.name == "fedavg" and config.train.schedule.name == "cosine" and config.train.lr == 0.3


def test_a_chain_and_the_command_line(files: Path) -> None:
    (files / "middle.yaml").write_text("extends: base.yaml\nseed: 6\nrounds: 7\n")
    config = read(files, "extends: ../middle.yaml\nrounds: 8", "train.lr=0.2")
    assert (config.seed, config.rounds, config.train.lr) == (6, 8, 0.2)
    assert read(files, "extends: ../base.yaml").to_dict() == read(files, BASE, name="base.yaml").to_dict()


def test_of_several_bases_the_later_wins(files: Path) -> None:
    """A name in a later base empties the section of an earlier one; other keys go on top, key by key."""
    (files / "fast.yaml").write_text("train: {lr: 0.9, momentum: 0.5}\nmethod: {name: fedavg}\n")
    (files / "iid.yaml").write_text("extends: fast.yaml\npartition: {name: iid}\ntrain: {lr: 0.7}\n")
    config = read(files, "extends: [../base.yaml, ../fast.yaml, ../iid.yaml]\nseed: 9")
    assert (config.seed, config.train.lr, config.train.momentum) == (9, 0.7, 0.5)
    assert config.method.name == "fedavg" and config.partition.name == "iid"
    assert config.train.schedule.milestones == (3,)


def test_a_problem_is_said_to_stand_in_its_own_file(files: Path) -> None:
    (files / "base.yaml").write_text("train:\n  lr: -1\n")
    with pytest.raises(ConfigError) as error:
        read(files, "extends: ../base.yaml\nrounds: 0")
    assert "train.lr (base.yaml: line 2)" in str(error.value) and "rounds (line 2)" in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("extends: nowhere.yaml", "extends (line 1): nowhere.yaml: no such file."),
        ("seed: 1\nextends: a.yaml", "extends (line 2): 'a.yaml' extends this file in turn"),
        ("extends: ../circle.yaml", "extends (line 1): ../circle.yaml: extends (circle.yaml: line 1): 'sub/a.yaml'"),
        ("extends: 3", "extends (line 1): expected the path of a YAML file"),
        ("extends: [../base.yaml, a.yaml]", "extends (line 1): 'a.yaml' extends this file in turn"),
        ("extends: ../sub", "extends (line 1): ../sub: cannot be read: "),
    ],
)
def test_mistakes_are_one_line(files: Path, text: str, expected: str) -> None:
    (files / "circle.yaml").write_text("extends: sub/a.yaml\n")
    shown = refusal(read, files, text).replace(f"{files}/sub/", "").replace(f"{files}/", "../")
    assert shown.startswith(f"a.yaml: {expected}")


def test_addresses_and_what_a_run_is_called_after() -> None:
    assert file_and_cell("x@y/t.yaml@a_b") == ("x@y/t.yaml", "a_b") and file_and_cell("a@b.yaml") == ("a@b.yaml", None)
    assert file_and_cell("t.yaml@x/u.yml") == ("t.yaml@x/u.yml", None)
    assert label("configs/fedhm/table3.yaml@cifar10_iid_fedhm") == "table3_cifar10_iid_fedhm"
    assert label(Path("a/fedhm_digits.yaml")) == "fedhm_digits"
    assert is_address("a.yml@x") and is_address("a.yaml") and not is_address("cifar10") and not is_address("a@b")
