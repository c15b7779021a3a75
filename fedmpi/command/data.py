"""The command for data: what there is, downloads, decoding, and a look at a partition.

    python -m fedmpi.data list [--data-dir D]
    python -m fedmpi.data fetch NAME | CONFIG.yaml [data.key=value ...] [--data-dir D] [--force]
    python -m fedmpi.data prepare NAME | CONFIG.yaml [data.key=value ...] [--data-dir D]
                                  [--from FOLDER_OR_ARCHIVE] [--unpack-in FOLDER]
    python -m fedmpi.data show [CONFIG.yaml] [section.key=value ...] [--data-dir D] [--out PICTURE.png]

Exit code 2 for what the user can fix, 1 if network or server fail after all retries, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from fedmpi import registry
from fedmpi.command.manners import Parser, run_command
from fedmpi.config import explain, yaml_text
from fedmpi.config.address import is_address
from fedmpi.config.explain import summary
from fedmpi.config.load import load, one_config
from fedmpi.config.schema import Config
from fedmpi.data.files import source as sources
from fedmpi.data.files.source import below_home
from fedmpi.data.options import DataOptions
from fedmpi.data.prepared import PreparedOptions, how_to_prepare, other_recipes
from fedmpi.errors import ConfigError, DataError, reason
from fedmpi.report.progress import Telling
from fedmpi.report.terminal import printable
from fedmpi.store.units import size

_DEFAULT_DIR = "~/data"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        return run_command(lambda: _run(parse(sys.argv[1:] if argv is None else argv)))
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(number: int, frame: Any) -> NoReturn:
    """A scheduler's SIGTERM cleans up as Ctrl-C does."""
    raise KeyboardInterrupt


def _run(arguments: argparse.Namespace) -> None:
    arguments.run(arguments)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; `run` is the function to call. Raises `ConfigError`."""
    parser = Parser("fedmpi data", "Data sets: list, download, decode, look at.")
    commands = parser.add_subparsers(required=True, metavar="list | fetch | prepare | show")
    for run, text in (
        (list_all, "name all data sets and say which are there"),
        (fetch, "download the files of a data set"),
        (prepare, "decode the files of a data set into the one that runs read"),
        (show, "counts, and classes per client, of a config's partition"),
    ):
        command = commands.add_parser(run.__name__.removesuffix("_all"), help=text, description=text)
        command.set_defaults(run=run)
        command.add_argument("--data-dir", metavar="D", help=f"the data folder, data.root of a config ({_DEFAULT_DIR})")
        if run in (fetch, prepare):
            named = "the data set, as data.name in a config; or a config, whose section data is taken"
            command.add_argument("name", metavar="NAME | CONFIG.yaml", help=named)
            command.add_argument("words", nargs="*", default=[], metavar="data.key=value", help="its options")
        if run is fetch:
            command.add_argument("--force", action="store_true", help="load again what is there")
        if run is prepare:
            command.add_argument("--from", dest="given", metavar="FOLDER_OR_ARCHIVE", help="where the originals are")
            place = "where an archive is unpacked meanwhile (the data folder); memory, as /dev/shm, is quickest"
            command.add_argument("--unpack-in", metavar="FOLDER", help=place)
        if run is show:
            command.add_argument("words", nargs="*", default=[], metavar="CONFIG.yaml | section.key=value")
            command.add_argument("--out", metavar="PICTURE.png", help="draw the classes of each client, too")
    # Options may stand between words, which argparse alone does not take after a subcommand.
    arguments, rest = parser.parse_known_args(argv)
    unknown = [word for word in rest if word.startswith("-")]
    if unknown or (rest and not hasattr(arguments, "words")):
        raise ConfigError("command line", f"cannot use {explain.found((unknown or rest)[0])}; see --help")
    if hasattr(arguments, "words"):
        arguments.words = [*arguments.words, *rest]
    return arguments


def list_all(arguments: argparse.Namespace) -> None:
    """Every data set: is it there, and what it is."""
    folder = arguments.data_dir or _DEFAULT_DIR
    _checked(folder)
    print(f"data sets; files below {folder}")
    for name, section in registry.built_in("data"):
        if missing := [f"data.{key}" for key, field in section.model_fields.items() if field.is_required()]:
            print(f"  {name:14}{f'yours: {missing[0]}=...':26}{summary(section)}")
            continue
        options = data_options(name, (), folder)
        print(f"  {name:14}{state_of(options):26}{summary(section)}")
        for told in other_recipes(options) if isinstance(options, PreparedOptions) else ():
            print(f"  {'':14}ready with {' '.join(told)}")


def state_of(options: DataOptions) -> str:
    """Whether its files are there: `ready`, `needs no files`, `here, to be prepared` or `to fetch (SIZE)`."""
    source = options.source
    if source is None:
        return "needs no files"
    if isinstance(options, PreparedOptions) and options.path.is_file():
        return "ready"
    if sources.is_here(options):
        return "here, to be prepared" if isinstance(options, PreparedOptions) else "ready"
    num_bytes = sum(file.num_bytes for file in source.needed(options))
    return f"to fetch ({size(num_bytes)})" if num_bytes else "to fetch"


def _options(arguments: argparse.Namespace) -> DataOptions:
    """What `fetch` and `prepare` are asked for: a data set by its name, or that of a config. Raises ConfigError."""
    if is_address(arguments.name):
        options: DataOptions = _load(arguments.name, arguments.words, arguments.data_dir).data
        return options
    return data_options(arguments.name, arguments.words, arguments.data_dir)


def _load(path: str | None, overrides: Sequence[str], data_dir: str | None) -> Config:
    """A config, with another data folder where it has one. Raises ConfigError."""
    config = load(path, overrides)
    if data_dir is None or not hasattr(config.data, "root"):
        return config
    return load(path, [*overrides, f"data.root={json.dumps(data_dir)}"])


def data_options(name: str, overrides: Sequence[str], data_dir: str | None) -> DataOptions:
    """The options of one data set, validated by themselves. Raises ConfigError."""
    known = registry.names("data")
    if name not in known:
        problem = f"no data set {explain.found(name)}.{explain.suggest(name, known)} Known names: {', '.join(known)}"
        raise ConfigError("command line", problem)
    section = registry.options("data", name)
    values: dict[str, Any] = {"name": name}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.startswith("data.") or key.count(".") != 1:
            raise ConfigError("command line", f"expected data.key=value, got {explain.found(override)}")
        try:
            values[key.removeprefix("data.")] = yaml_text.parse(text).value
        except yaml_text.YamlError as error:
            raise ConfigError("command line", f"override {explain.found(override)}: {error.text}") from None
    if data_dir is not None and "root" in section.model_fields:
        values["root"] = data_dir
    try:
        found: DataOptions = section.model_validate(explain.completed(section, values))
    except ValidationError as error:
        problems = explain.problems(section, error, ("data",), dict)
        lines = [f"{explain.dotted(problem.path)}  {problem.text}" for problem in problems]
        raise ConfigError("command line", *lines) from None
    return found


def fetch(arguments: argparse.Namespace) -> None:
    """Downloads what the options need, and unpacks what a run reads unpacked."""
    options = _options(arguments)
    source = options.source
    if source is None:
        print(f"{options.name} needs no files")
        return
    files = source.needed(options)
    print(f"{options.name}: {source.page}; terms: {source.terms}", *filter(None, [source.other]), sep="\n")
    if not files:
        raise DataError(options.name, "these files cannot be downloaded; the line above says how to make them")
    for file in files:
        _fetch_one(file, _folder(options), arguments.force)
    if isinstance(options, PreparedOptions):
        print(f"now decode it: {how_to_prepare(options)}")


def _fetch_one(file: sources.File, folder: Path, force: bool) -> None:
    from fedmpi.data.files import archives, fetching

    target = folder / file.path
    unpacked = sources.unpacked(file, folder) if file.unpack_to else None
    if unpacked is not None and not force:
        print(f"{unpacked}: there already; --force loads it again")
        return
    try:
        with Telling(target.name, size) as telling:
            is_new = fetching.fetch(file, folder, telling, force=force, wait=_wait)
    except KeyboardInterrupt:
        print(f"{fetching.kept(folder, file) or 'nothing is kept'}; the same command continues", file=sys.stderr)
        raise
    algorithm = file.checksum.partition(":")[0]
    checked = f"{algorithm} right" if algorithm else "no published checksum: its reader checks it"
    print(f"{target}: {'loaded' if is_new else 'there already'}, {size(target.stat().st_size)}, {checked}")
    if file.unpack_to:
        with fetching.only_one(target):
            if not force and sources.unpacked(file, folder) is not None:
                return  # another process was quicker
            with Telling(f"unpacking {target.name}") as telling:
                made = archives.unpack(target, folder / file.unpack_to, telling, replace=force)
        print(f"unpacked: {', '.join(map(str, made))}")


def _wait(seconds: float, why: str) -> None:
    print(why, file=sys.stderr, flush=True)
    time.sleep(seconds)


def prepare(arguments: argparse.Namespace) -> None:
    """Decodes the originals into the prepared file."""
    options = _options(arguments)
    if not isinstance(options, PreparedOptions):
        print(f"{options.name} is read as it is: nothing to prepare")
        return
    _folder(options)
    from fedmpi.data import preparing

    given, unpack_in = (path and below_home(path) for path in (arguments.given, arguments.unpack_in))
    with Telling(f"unpacking for {options.name}") as unpacking, Telling(f"decoding {options.name}") as decoding:
        path, dataset = preparing.prepare(options, given, unpacking, decoding, unpack_in)
    found = preparing.counts_of(dataset)
    groups = f", {found['num_groups']:,} groups" if found["num_groups"] else ""
    counts = f"{found['num_train']:,} to train, {found['num_test']:,} to test{groups}"
    print(f"{path}: {counts}, {size(path.stat().st_size)}")
    if other := preparing.other_counts(options, dataset):
        print(f"not the counts of the complete files: a config needs {' '.join(other)}")


def show(arguments: argparse.Namespace) -> None:
    """Reads the data of a config, divides them as its run would, and says what each client has."""
    from fedmpi.data import reading
    from fedmpi.data.partition import make_partition

    config = _load(*one_config(arguments.words), arguments.data_dir)
    from fedmpi.data import show as showing

    dataset = reading.load(config.data)
    labels, info = dataset.train_y, config.data.used()
    partition = make_partition(config.partition, labels, config.clients.count, config.seed, dataset.groups)
    print(printable(showing.table(partition, labels, info.num_classes, dataset.groups), sys.stdout))
    print(f"{'digest of the data':18}  {dataset.digest}")
    if arguments.out is not None:
        title = f"{config.data.name}, {config.partition.name}, {config.clients.count} clients, seed {config.seed}"
        try:
            showing.picture(partition, labels, info.num_classes, below_home(arguments.out), title)
        except (OSError, ValueError) as error:  # ValueError: an ending that matplotlib does not know
            raise DataError(f"--out {arguments.out}", f"cannot be drawn: {reason(error)}") from error
        print(f"drawn: {arguments.out}")


def _folder(options: DataOptions) -> Path:
    return _checked(str(getattr(options, "root", _DEFAULT_DIR)))


def _checked(data_dir: str) -> Path:
    """The data folder, which need not be there yet. Raises DataError if it is something else than a folder."""
    folder = below_home(data_dir)
    if folder.exists() and not folder.is_dir():
        raise DataError(str(folder), "is not a folder; --data-dir (data.root) is the folder of all data sets")
    return folder
