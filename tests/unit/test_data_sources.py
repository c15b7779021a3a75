"""Where data sets come from: that every file is pinned, and that the commands in messages are commands."""

import importlib.util
import shlex
from pathlib import Path

import pytest
from data_fixtures import SHARED_DATA, SOURCES

from fedmpi import registry
from fedmpi.command import data as data_command
from fedmpi.data.files import fetching
from fedmpi.data.files.source import how_to_fetch
from fedmpi.data.prepared import PreparedOptions, how_to_prepare


def test_every_data_set_with_files_has_a_source() -> None:
    with_root = {name for name, options in registry.built_in("data") if "root" in options.model_fields}
    assert with_root == set(SOURCES)
    for _, options in registry.built_in("data"):
        assert not issubclass(options, PreparedOptions) or options.traces


@pytest.mark.parametrize("name", SOURCES)
def test_sources_are_pinned(name: str) -> None:
    digits = {"md5": 32, "sha256": 64}
    for file in SOURCES[name].files:
        algorithm, _, digest = file.checksum.partition(":")
        assert len(digest) == digits[algorithm] and int(digest, 16) > 0
        assert file.urls and all(url.startswith(("https://", "http://cs231n.stanford.edu/")) for url in file.urls)
        assert not Path(file.path).is_absolute() and ".." not in Path(file.path).parts


def test_checksums_are_torchvision_s() -> None:
    """As its source has them: to import it takes seconds."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        pytest.skip("torchvision is not installed")
    folder = Path(spec.origin).with_name("datasets")
    theirs = "".join((folder / name).read_text() for name in ("cifar.py", "mnist.py"))
    emnist = SOURCES["emnist"].files[0]
    urls = [SOURCES[name].files[0].urls for name in ("cifar10", "cifar100")]
    urls += [file.urls for file in SOURCES["qmnist"].files if "QMNIST" in file.path]
    pinned = [url for (url,) in [*urls, emnist.urls]]
    pinned += [Path(file.path).name for file in SOURCES["mnist"].files]
    for text in (*pinned, emnist.checksum.removeprefix("md5:")):
        assert f'"{text}"' in theirs, text


def test_checksums_of_real_files() -> None:
    """MNIST, QMNIST's labels and the Shakespeare text are beside the project as distributed."""
    if not (SHARED_DATA / "mnist").is_dir():
        pytest.skip(f"needs {SHARED_DATA / 'mnist'}")
    for file in SOURCES["qmnist"].files:
        assert fetching.wrong_content(file, SHARED_DATA / "mnist" / file.path) == ""
    assert fetching.wrong_content(SOURCES["shakespeare"].files[0], SHARED_DATA / "tinyshakespeare" / "input.txt") == ""


def test_what_is_fetched_hangs_on_the_options() -> None:
    windows, features = registry.options("data", "har")(), registry.options("data", "har")(form="features")
    assert [file.path for file in SOURCES["har"].needed(windows)] == ["har-341.zip"]
    assert [file.path for file in SOURCES["har"].needed(features)] == ["har-240.zip"]
    assert "fetch har --data-dir" in how_to_fetch(windows)
    assert "fetch har data.form=features --data-dir" in how_to_fetch(features)


def test_the_commands_that_messages_name_are_taken(tmp_path: Path) -> None:
    options = registry.options("data", "har")(root=str(tmp_path / "my data"), form="features", test_share=0.5)
    for text in (how_to_fetch(options).split("`")[1], how_to_prepare(options)):
        arguments = data_command.parse(shlex.split(text)[3:])
        again = data_command.data_options(arguments.name, arguments.words, arguments.data_dir)
        assert again.form == "features" and again.root == str(tmp_path / "my data")
    assert again == options
