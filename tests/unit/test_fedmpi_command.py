"""The command `fedmpi`: which module each word calls, what it finds without a checkout, and what its package holds."""

import sys
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path

import pytest
from setuptools import find_packages

from fedmpi import __main__ as command
from fedmpi.config import address

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def own_words(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fedmpi"])


@pytest.mark.parametrize("name", command.COMMANDS)
def test_every_word_has_a_module_with_a_main(name):
    assert callable(import_module(command.COMMANDS[name][0]).main)
    assert f"fedmpi {name} " in command.overview()


def test_a_word_that_is_no_command_runs(monkeypatch):
    """`fedmpi CONFIG.yaml` is `fedmpi run CONFIG.yaml`."""
    called = []
    monkeypatch.setattr("fedmpi.main.main", lambda: called.append(sys.argv) or 0)
    expected = {
        "fedhm_digits.yaml seed=1": ["fedmpi run", "fedhm_digits.yaml", "seed=1"],
        "run seed=1": ["fedmpi run", "seed=1"],
        "": ["fedmpi run"],
    }
    for words in expected:
        assert command.main(words.split()) == 0
    assert called == [*expected.values()]


def test_the_installed_command_imports_from_the_current_folder(here, monkeypatch):
    """As `python -m` does; the program of an installed command has its own folder first instead."""
    monkeypatch.setattr(command, "notice_early", lambda: None)
    monkeypatch.setattr("fedmpi.main.main", lambda: import_module("beside_me").CODE)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(here))])
    Path("beside_me.py").write_text("CODE = 7\n")
    for _ in range(2):
        assert command.main() == 7 and sys.path.count(str(here)) == 1


def test_a_misspelled_command(capsys):
    assert command.main(["plann", "fedhm_digits"]) == 2
    err = capsys.readouterr().err
    assert "'plann'" in err and "'fedmpi plan'?" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("word", "cell"),
    [
        ("fedhm_digits", ""),
        ("configs/fedhm_digits.yaml", ""),
        ("papers/fedhm@cifar10_iid/fedhm", "cifar10_iid/fedhm"),
        ("configs/papers/fedhm.yaml@cifar10_iid/fedhm", "cifar10_iid/fedhm"),
    ],
)
def test_configs_that_come_along_are_found_from_any_folder(here, word, cell):
    file, found_cell = address.file_and_cell(address.located(word))
    assert Path(file).parent in (ROOT / "configs", ROOT / "configs" / "papers") and (found_cell or "") == cell
    Path("fedhm_digits.yaml").write_text("seed: 1\n")  # a file of one's own goes first
    assert address.located("fedhm_digits.yaml") == "fedhm_digits.yaml"
    assert address.located("nothing_of_ours") == "nothing_of_ours"


def test_the_list_of_packages_is_the_folders_own():
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = config["options"]["packages"].split()
    assert set(listed) == {*find_packages(str(ROOT), include=["fedmpi*"]), "fedmpi.configs", "fedmpi.slurm"}
