"""The cases of the benchmarks, each a method on a net, and the command line that offers them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fedmpi.command.manners import Parser
from fedmpi.config.load import load, only_overrides
from fedmpi.errors import ConfigError
from fedmpi.studies.arguments import number

LONG = "rounds=1000000 evaluation.every=1000000 train.augment=false output.tensorboard=false data.name=synthetic"
_IMAGES = f"""{LONG} data.classes=10 data.num_test=100 partition.name=iid train.masked_loss=false
    clients.count=10 clients.per_round=4 model.name=resnet18"""
_SMALL = f"""{_IMAGES} data.shape=[1,8,8] data.num_train=960 model.width=0.25 model.blocks=[1,1,1,1]
    train.batch_size=32 train.local_epochs=10"""
_LARGE = f"{_IMAGES} data.shape=[3,32,32] data.num_train=1280 train.batch_size=64 train.local_epochs=2"
_CIFAR10 = f"""{LONG.replace("data.name=synthetic", "data.name=cifar10")} data.num_train=1280 data.num_test=100
    partition.name=iid clients.count=10 clients.per_round=4 train.batch_size=64 train.local_epochs=1
    method.name=fedhm"""
CASES = {
    "small": ("small CNN (8x8 inputs), FedAvg", f"{_SMALL} method.name=fedavg"),
    "small-fedhm": ("small CNN (8x8 inputs), FedHM", f"{_SMALL} method.name=fedhm"),
    "resnet18": ("ResNet-18, FedAvg", f"{_LARGE} method.name=fedavg"),
    "resnet18-fedhm": ("ResNet-18, FedHM", f"{_LARGE} method.name=fedhm"),
    "resnet18-heterofl": ("ResNet-18, HeteroFL", f"{_LARGE} method.name=heterofl"),
    "resnet18-topk": ("ResNet-18, top-k", f"{_LARGE} method.name=topk"),
    "cifar10-fedhm": ("ResNet-18 on CIFAR-10, FedHM", f"{_CIFAR10} model.name=resnet18"),
    "cifar10-fedhm34": ("ResNet-34 on CIFAR-10, FedHM", f"{_CIFAR10} model.name=resnet34"),
    "digits-fedhm": ("the main job, FedHM on digits", "evaluation.every=34 output.tensorboard=false"),
}
"""Each case, a method on a net: its title, and its overrides, on top of the packaged default, which is the main job."""


def asked(
    argv: Sequence[str] | None,
    what: str,
    doc: str | None,
    *,
    default: Sequence[str],
    allowed: Sequence[str] = tuple(CASES),
    on_top: Sequence[str] = (),
    sets: Sequence[str] = (),
    pairs: str = "",
    ranks: int = 0,
    more: Callable[[argparse.ArgumentParser], Any] = lambda parser: None,
) -> argparse.Namespace:
    """The command line of the benchmark `what`: overrides, `--case` of those `allowed`, `--pairs` with this help, and
    `--ranks` with this default (0: one process, without the option). `more` adds arguments. The benchmark adds the
    overrides `on_top` to each case; the user may change them. It `sets` others, which the user may not give. The
    result's `runs` has all overrides of each case. Raises `ConfigError` for a mistake.
    """
    parser = Parser(f"jobs/bench.py {what}", doc)
    parser.add_argument("what", choices=[what])
    parser.add_argument("words", nargs="*", metavar="section.key=value", help="on top of each case")
    if ranks:
        help_ranks = f"rank 0 and the workers (default {ranks})"
        parser.add_argument("--ranks", type=number(int, 1), default=ranks, help=help_ranks)
    if pairs:
        parser.add_argument("--pairs", type=number(int, 1), default=5, help=f"{pairs} (default 5)")
    help_case = f"of {', '.join(allowed)}; default {','.join(default)}"
    parser.add_argument("--case", type=partial(_cases, allowed), default=list(default), help=help_case)
    more(parser)
    arguments = parser.parse_intermixed_args(argv)
    arguments.overrides = overrides_of(arguments.words, sets, "a case is named by --case")
    own = {name: CASES[name][1].split() for name in arguments.case}
    arguments.runs = {name: [*words, *on_top, *arguments.overrides, *sets] for name, words in own.items()}
    for words in arguments.runs.values():
        load(None, words)  # here a mistake is one line
    return arguments


def overrides_of(words: Sequence[str], sets: Sequence[str], advice: str = "") -> list[str]:
    """The overrides. Raises `ConfigError` for another word, and for a key that the benchmark `sets` itself."""
    overrides, own = only_overrides(words, advice), {word.partition("=")[0] for word in sets}
    for override in overrides:
        if (key := override.partition("=")[0].strip()) in own:
            raise ConfigError("command line", f"{override}: this benchmark sets {key} itself; leave it out")
    return overrides


def _cases(allowed: Sequence[str], text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in allowed:
            other = " for this benchmark" if name in CASES else ""
            raise argparse.ArgumentTypeError(f"no case {name!r}{other}; there are {', '.join(allowed)}")
    return names
