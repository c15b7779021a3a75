"""What FedHM's server factorizes in a round: `solver: auto` against `gram` on the same states of one run.

    python jobs/bench.py factorize [section.key=value ...] [--pairs 5] [--case cifar10-fedhm,...]
    python jobs/bench.py factorize --case digits-fedhm --pairs 34

Prints for the new state of each round what `auto` and `gram` take, what the audit of one layer takes after it, and by
how much auto's squared error exceeds the other's. Try it on real data. The second line is the main job: states of all
its rounds, the late ones, too.

The states come from a run with `auto`, so `auto` begins from the bases of its own last round. After each round both
solvers factorize the new state, in turn. Auto's time is that of turning the bases and of the factors. The audit of one
layer comes after publishing, while workers train, so it is timed apart.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedmpi.command.manners import run_command
from fedmpi.errors import ConfigError
from fedmpi.lowrank.publishing import PublishedFactors
from fedmpi.lowrank.warm import AUDIT, is_of_bases, share
from fedmpi.methods.fedhm import FedHM
from fedmpi.rounds.recovering import OpenRound
from fedmpi.rounds.state import Setup
from fedmpi.running.resuming import initial_state
from fedmpi.studies.bench.cases import CASES, asked
from fedmpi.studies.bench.on_ranks import launched, prepared
from fedmpi.tensors import Layout, Params
from fedmpi.train_round import train_round

WORDS = ("method.solver=auto",)
_CASES = tuple(name for name in CASES if "fedhm" in name)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 2 for a user's mistake."""
    return run_command(lambda: _bench(_arguments(argv)))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    pairs, default = "rounds to train, whose states both factorize", ("resnet18-fedhm",)
    return asked(argv, "factorize", __doc__, default=default, allowed=_CASES, sets=WORDS, pairs=pairs)


def _bench(arguments: argparse.Namespace) -> None:
    for name, words in arguments.runs.items():
        for line in shown(launched("factorize", words, num_rounds=arguments.pairs)):
            print(f"{CASES[name][0]}: {line}", flush=True)


def on_ranks(comm: Any, folder: Path, words: Sequence[str], num_rounds: int) -> dict[str, float]:
    """What the one process measures."""
    return measured(prepared(comm, folder, words), num_rounds)


def measured(setup: Setup, num_rounds: int) -> dict[str, float]:
    """Seconds of both solvers and of the audit by round, the largest excess of auto's squared error over gram's, as a
    share of it, and how many layers came from the Gram matrix."""
    method = setup.method
    if not (isinstance(method, FedHM) and (bases := method.factorization.bases)):
        raise ConfigError("method.name", "the factorization is measured of fedhm with a tier of a rank ratio below 1")
    opened = OpenRound(1, initial_state(setup, None))
    result: dict[str, float] = {"layers": len(method.layers), "warm": len(bases.ranks)}
    result["threads"] = torch.get_num_threads()
    for number in range(1, num_rounds + 1):
        last = opened.state.params
        train_round(setup, opened)
        new = opened.state.params
        stale = {name: value for name, value in new.items() if not is_of_bases(name)}
        stale |= {name: value for name, value in last.items() if is_of_bases(name)}
        factors, seconds = {}, {}
        for solver, act in (("gram", partial(_by_gram, method, new)), ("auto", partial(_by_bases, method, stale))):
            seconds[solver], factors[solver] = _timed(act)
        seconds["audit"], _ = _timed(partial(bases.audited, method.refresh(stale)))
        result |= {f"{solver}_s@{number}": value for solver, value in seconds.items()}
        result[f"excess@{number}"] = max(_excesses(method, new, factors).values())
        result[f"by_gram@{number}"] = float((new[AUDIT][2:] > 0).sum())
        opened = OpenRound(number + 1, opened.state, opened.published)
    return result


def shown(result: Mapping[str, float]) -> list[str]:
    """The result as lines: a round each, then the median without round 1, whose bases are the Gram matrix's."""
    rounds = sorted(int(name.partition("@")[2]) for name in result if name.startswith("gram_s@"))
    ratios, lines = [], []
    for number in rounds:
        gram_s, auto_s = result[f"gram_s@{number}"], result[f"auto_s@{number}"]
        ratios.append(auto_s / gram_s)
        lines.append(
            f"round {number}: gram {gram_s:.3f} s, auto {auto_s:.3f} s ({ratios[-1]:.2f}), then an audit of "
            f"{result[f'audit_s@{number}']:.3f} s; largest excess {100 * result[f'excess@{number}']:.4f} %; "
            f"{result[f'by_gram@{number}']:.0f} layers by the Gram matrix"
        )
    later = ratios[1:] or ratios
    of = f"{result['warm']:.0f} of {result['layers']:.0f} layers have bases"
    median = f"median {statistics.median(later):.2f} ({min(later):.2f} to {max(later):.2f})"
    return [*lines, f"auto / gram: {median} in {len(later)} rounds; {of}; {result['threads']:.0f} threads"]


def _ratio(method: FedHM) -> float:
    return max(tier.capacity for tier in method.tiers if tier.capacity < 1)


def factors_of(
    factorization: PublishedFactors, state: Params, ratio: float, device: torch.device | str = "cpu"
) -> Params:
    """What the server publishes of a state that lies on the device."""
    layout = Layout.of(factorization.specs(ratio, channels_last=False))
    out = layout.views(layout.new_buffer(device))
    factorization.write(state, out)
    return out


def _by_gram(method: FedHM, state: Params) -> Params:
    return factors_of(PublishedFactors(method.layers, "gram", None), state, _ratio(method))


def _by_bases(method: FedHM, state: Params) -> Params:
    return factors_of(method.factorization, method.refresh(state), _ratio(method))


def _excesses(method: FedHM, state: Params, factors: Mapping[str, Params]) -> dict[str, float]:
    """By layer: the squared error of auto's factors beyond that of gram's, as the share of gram's that audits give."""
    found = {}
    for name in method.layers:
        energy = float(state[f"{name}.weight"].double().square().sum())
        gram, auto = (_layer_error(method, name, state, factors[solver]) for solver in ("gram", "auto"))
        found[name] = share(auto - gram, gram, energy)
    return found


def squared_error(method: FedHM, state: Params, factors: Params) -> float:
    """Of all layers, computed on the CPU; the state lies there."""
    return sum(_layer_error(method, name, state, factors) for name in method.layers)


def _layer_error(method: FedHM, name: str, state: Params, factors: Params) -> float:
    layer = method.layers[name]
    u, v = (factors[factor].cpu() for factor in layer.factor_names)
    product = layer.u_matrix(u).double() @ layer.v_matrix(v).double()
    return float((layer.unroll(state[f"{name}.weight"]).double() - product).square().sum())


def _timed(action: Callable[[], Params]) -> tuple[float, Params]:
    started = time.perf_counter()
    result = action()
    return time.perf_counter() - started, result


if __name__ == "__main__":
    sys.exit(main())
