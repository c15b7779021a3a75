"""The command `fedmpi data`: the data sets there are, downloads, decoding, and a look at a partition."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedmpi import registry
from fedmpi.command.manners import Parser, run_command
from fedmpi.config import explain, yaml_text
from fedmpi.config.address import is_address, located
from fedmpi.config.load import one_config
from fedmpi.data import files
from fedmpi.data.dataset import load_data
from fedmpi.data.files import FetchedOptions, PreparedOptions
from fedmpi.data.partition import Partition, class_counts, make_partition
from fedmpi.data.subset import Ints
from fedmpi.errors import ConfigError, DataError
from fedmpi.results.grid_file import load_address
from fedmpi.store.units import size

_FIT_ALL_DATA = ("model.name=mlp", "method.name=fedavg", "partition.name=iid", "clients.count=1", "clients.per_round=1")
"""Settings of the other sections that suit every data set."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""

    def run() -> None:
        arguments = parse(sys.argv[1:] if argv is None else argv)
        arguments.run(arguments)

    return run_command(run)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the command line; `run` is the function to call. Raises `ConfigError`."""
    parser = Parser("fedmpi data", "Data sets: list, download, decode, look at.")
    commands = parser.add_subparsers(required=True, metavar="list | fetch | prepare | show")
    for name, run, text, words in (
        ("list", list_sets, "name all data sets and say which are there", "data.root=FOLDER"),
        ("fetch", fetch, "download the files of a data set", "data.key=value"),
        ("prepare", prepare_set, "decode the files of a data set into the one that runs read", "data.key=value"),
        ("show", show, "counts, and classes per client, of a partition", "CONFIG.yaml | section.key=value"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        if run in (fetch, prepare_set):
            named = "the data set, as data.name in a config; or a config, whose section data is taken"
            command.add_argument("name", metavar="NAME | CONFIG.yaml", help=named)
        command.add_argument("words", nargs="*", default=[], metavar=words, help="settings, as those of a run")
        if run is fetch:
            command.add_argument("--force", action="store_true", help="load again what is there")
        if run is prepare_set:
            command.add_argument("--from", dest="given", type=Path, metavar="FOLDER_OR_ARCHIVE", help="the originals")
    arguments, rest = parser.parse_known_args(argv)
    for word in rest:  # argparse does not take words that stand behind options of a subcommand
        if word.startswith("-"):
            raise ConfigError("command line", f"cannot use {yaml_text.found(word)}; see --help")
        arguments.words.append(word)
    return arguments


def data_options(name: str, overrides: Sequence[str]) -> Any:
    """Returns the options of the data set of this name, or of the config that is named. Raises ConfigError."""
    address = located(name)
    if is_address(address):
        return load_address(address, overrides).data
    return load_address(None, [*_FIT_ALL_DATA, f"data.name={name}", *overrides]).data


def list_sets(arguments: argparse.Namespace) -> None:
    """Prints a line for every data set: is it there, and what it is."""
    folder = data_options("cifar10", arguments.words).root
    print(f"data sets; files below {folder}")
    for name, section in registry.built_in("data"):
        print(f"  {name:14}{_state(section, folder):26}{explain.summary(section)}")


def _state(section: Any, folder: str) -> str:
    if "path" in section.model_fields:
        return "yours: data.path=..."
    if not issubclass(section, FetchedOptions):
        return "needs no files"
    options = section(root=folder)
    if isinstance(options, PreparedOptions) and options.path.is_file():
        return "ready"
    if not options.are_here():
        return "to fetch"
    return "here, to be prepared" if isinstance(options, PreparedOptions) else "ready"


def fetch(arguments: argparse.Namespace) -> None:
    """Downloads the files that the options need, and unpacks those that a run reads unpacked."""
    options = data_options(arguments.name, arguments.words)
    if not isinstance(options, FetchedOptions):
        print(f"{options.name} needs no files")
        return
    if not options.files():
        raise DataError(options.name, "LEAF's files cannot be downloaded; fedmpi/data/README.md says how to make them")
    folder = options.folder
    if options.unpacked and options.are_here() and not arguments.force:
        print(f"{folder / options.unpacked[0]}: there already; --force loads it again")
        return
    print(f"{options.name}: for the terms of use see fedmpi/data/README.md")
    for name in options.files():
        files.fetch(name, folder, force=arguments.force)
        path = folder / name
        print(f"{path}: {size(path.stat().st_size)}, checksum right")
        if options.unpacked:
            print(f"unpacked: {', '.join(map(str, files.install(path)))}")
    if isinstance(options, PreparedOptions):
        print(f"now decode it: {options.command('prepare')}")


def prepare_set(arguments: argparse.Namespace) -> None:
    """Decodes the originals into the prepared file."""
    options = data_options(arguments.name, arguments.words)
    if not isinstance(options, PreparedOptions):
        print(f"{options.name} is read as it is: nothing to prepare")
        return
    dataset = files.prepare(options, arguments.given)
    counts = "{num_train:,} to train, {num_test:,} to test, {num_groups:,} groups".format(**dataset.counts)
    print(f"{options.path}: {counts}, {size(options.path.stat().st_size)}")


def show(arguments: argparse.Namespace) -> None:
    """Reads the data of a config, divides them as its run would, and says what each client has."""
    config = load_address(*one_config(arguments.words))
    dataset = load_data(config.data)
    labels = dataset.classes("train")
    partition = make_partition(config.partition, dataset.train_y, config.clients.count, config.seed, dataset.groups)
    print(table(partition, labels, config.data.used().num_strata))
    print(f"{'digest of the data':18}  {dataset.digest}")


def table(partition: Partition, labels: Ints, num_classes: int) -> str:
    """Returns a few lines of text: examples in use, clients, sizes, classes for each client, examples of each class."""
    rows = [
        ("clients", f"{partition.num_clients:,}"),
        ("examples", f"{len(partition.indices):,} of {len(labels):,} in use"),
        ("per client", _spread(partition.sizes)),
    ]
    if num_classes > 1:
        counts = class_counts(partition, labels, num_classes)
        rows.append(("classes per client", _spread((counts > 0).sum(axis=1))))
        rows.append(("per class", _spread(counts.sum(axis=0))))
    return "\n".join(f"{name:18}  {text}" for name, text in rows)


def _spread(values: Ints) -> str:
    low, middle, high = int(values.min()), float(np.median(values)), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}, median {middle:,.10g}"
