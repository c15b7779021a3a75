"""What the pruned nets of a Hermes run save where they are deployed (its section 5.7: Table 3, Fig. 10 and 11).

    python jobs/measure_pruned.py RUN_DIR [section.name=...] [--clients 0,3 | --all] [--batch 1] [--times 50]

For each client three nets on this machine's device: the dense one that every client begins with, the
client's own with zeros where it is pruned, and the same really cut (`fedmpi.models.surgery.cutting`).
BatchNorm has the statistics of a batch of the client's own training data, as when deployed. A row
has rho (the share of parameters that the mask keeps), the net's parameters and their bytes in
float32, multiply-accumulates and the bytes of all activations for one example, an estimate of the
peak memory of inference at the batch size (parameters, and the largest input and output of a
layer), the median time of a batch, and its energy as NVML counts it for the whole GPU, where there
is one and `pynvml` is installed. The last column is the largest difference of logits from the
masked net's, in units of the largest logit.

The mask still counts the next layers' inputs of pruned outputs; the cut net has none of them, so it
is smaller than rho says. Only where additions tie channels together may it hold more, as zeros.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedmpi import costs
from fedmpi.command.manners import Parser, run_command
from fedmpi.data.batches import Draws
from fedmpi.errors import UserError
from fedmpi.federation.assignment import Task
from fedmpi.learning.bn import batch_norms
from fedmpi.methods.hermes import Hermes
from fedmpi.models.surgery.cutting import cut
from fedmpi.mpi.serial import SerialComm
from fedmpi.rounds.state import Published, Setup, client_of
from fedmpi.running import resuming, start
from fedmpi.store import checkpoint
from fedmpi.store.checkpoint import Snapshot
from fedmpi.store.run_dir import RunDir
from fedmpi.studies.arguments import number, numbers
from fedmpi.studies.bench import energy
from fedmpi.studies.runs import Run

WARM_UP = 5
CALIBRATION_EXAMPLES = 256
MOST_BATCH, MOST_TIMES = 65_536, 1_000_000  # more would fill memories, or take days
KEPT = "kept is the mask's share, which still counts the next layers' inputs of pruned outputs: the cut net"


COLUMNS = {"client": 6, "net": 6, "kept": 8, "parameters": 12, "size": 12, "MACs": 12, "activations": 12}
COLUMNS |= {"peak (est.)": 12, "time": 12, "energy": 13, "differs": 8}


@dataclass(frozen=True)
class Row:
    """One net of one client, measured."""

    client: str
    net: str
    kept: float
    """rho: the share of the dense net's parameters that the mask keeps."""
    costs: costs.Costs
    peak_bytes: int
    seconds: float
    joules: float | None
    difference: float | None

    def cells(self) -> tuple[str, ...]:
        params, in_mb = self.costs.params, (4 * self.costs.params, self.costs.activation_bytes, self.peak_bytes)
        num_bytes, activations, peak = (f"{1e-6 * number:.3f} MB" for number in in_mb)
        found = (f"{100 * self.kept:.1f} %", f"{params:,}", num_bytes, f"{1e-6 * self.costs.macs:.2f} M", activations)
        energy = "not measured" if self.joules is None else f"{1e3 * self.joules:.2f} mJ"
        difference = "" if self.difference is None else f"{self.difference:.0e}"
        return (self.client, self.net, *found, peak, f"{1e3 * self.seconds:.3f} ms", energy, difference)


def _print_line(cells: Iterable[str]) -> None:
    print(" ".join(f"{cell:>{width}}" for cell, width in zip(cells, COLUMNS.values(), strict=True)), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 2 for a user's mistake."""
    return run_command(lambda: _measure(_arguments(argv)))


def _measure(arguments: argparse.Namespace) -> None:
    setup, snapshot = _open(Run("", 0, RunDir(Path(arguments.run_dir))), arguments.words)
    clients = range(setup.config.clients.count) if arguments.all else arguments.clients
    unknown = [client for client in clients if client not in range(setup.config.clients.count)]
    if unknown:
        raise UserError("--clients", f"no client {unknown[0]}; allowed: 0 to {setup.config.clients.count - 1}")
    inputs, times = _inputs(setup, arguments.batch), arguments.times
    print(f"after round {snapshot.round}, on {setup.device.description}, batches of {len(inputs)}, median of {times}")
    _print_line(COLUMNS)
    rows: list[Row] = []
    for client in clients:
        if not rows:
            _print_line(_dense(setup, client, inputs, times).cells())
        for name, kept, net, reference in _nets(setup, snapshot, client):
            rows.append(_measured(str(client), name, kept, net, inputs, times, reference))
            _print_line(rows[-1].cells())
    masked, small = ([row.seconds for row in rows if row.net == name] for name in ("masked", "cut"))
    speed = f"{sum(masked) / sum(small):.2f} times as fast as masked ones (clients measured: {len(small)})"
    print(f"cut nets are {speed}; {KEPT} is smaller than it says")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("jobs/measure_pruned.py", __doc__)
    parser.add_argument("run_dir", help="the directory of a Hermes run")
    named = "code that the run's config names in full, to import it, as data.name=package.module:function"
    parser.add_argument("words", nargs="*", default=[], metavar="section.name=...", help=named)
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--clients", type=numbers, default=[0], help="client numbers, with commas (default 0)")
    chosen.add_argument("--all", action="store_true", help="all clients")
    batch, times = number(int, 1, MOST_BATCH), number(int, 1, MOST_TIMES)
    parser.add_argument("--batch", type=batch, default=1, help="examples of an inference (default 1)")
    parser.add_argument("--times", type=times, default=50, help="of it; the median counts (default 50)")
    return parser.parse_args(argv)


def _open(run: Run, named: Sequence[str]) -> tuple[Setup, Snapshot]:
    """The run as a single process would continue it, and its newest checkpoint; for `named` see `Run.config`."""
    config, run_dir = run.config(named), run.folder
    if config.method.name != "hermes":
        raise UserError(str(run_dir.path), f"is a run of {config.method.name}; only Hermes prunes nets")
    snapshot = checkpoint.load_newest_intact(run_dir, lambda line: print(line, file=sys.stderr))
    if snapshot is None:
        raise UserError(str(run_dir.path), "has no whole checkpoint")
    comm: Any = SerialComm()
    setup = start.prepare(config, comm, run_dir)
    resuming.check_data(setup, run_dir, snapshot)
    return setup, snapshot


def _inputs(setup: Setup, batch: int) -> torch.Tensor:
    shape = setup.data.info.example_shape
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(0)).to(setup.data.device)


def savings(run: Run, named: Sequence[str], client: int = 0, times: int = 50) -> tuple[float, float | None]:
    """How much longer an inference of the dense net takes than that of a client's cut one, on this machine, and how
    much more energy (None where NVML cannot tell); for `named` see `Run.config`. Raises `UserError`."""
    setup, snapshot = _open(run, named)
    inputs = _inputs(setup, 1)
    dense = _dense(setup, client, inputs, times)
    [(name, kept, net)] = [row[:3] for row in _nets(setup, snapshot, client) if row[0] == "cut"]
    small = _measured(str(client), name, kept, net, inputs, times, None)
    energy = dense.joules / small.joules if dense.joules and small.joules else None
    return dense.seconds / small.seconds, energy


def _dense(setup: Setup, client: int, inputs: torch.Tensor, times: int) -> Row:
    return _measured("-", "dense", 1.0, _with_statistics(setup, setup.method.net(0), client), inputs, times, None)


def _nets(setup: Setup, snapshot: Snapshot, client: int) -> Iterator[tuple[str, float, nn.Module, nn.Module | None]]:
    """The client's net as it is tested, masked and cut, each with rho and the net that it should agree with."""
    method = setup.method
    assert isinstance(method, Hermes)
    device, net = setup.data.device, setup.trainers[0].net
    params = {name: snapshot.server[name].to(device) for name in method.published_specs({0})}
    task = Task(client, 0, snapshot.round, "test", setup.partition.size(client), 0.0)
    known = client_of(setup, task, Published(params, {}, {}), snapshot.clients.get(client))
    method.narrow(params, 0, net.params, known)
    masked = method.net(0)
    masked.load_state_dict(net.params)
    masked = _with_statistics(setup, masked, client)
    masks = known.memory or {}
    yield "masked", method.remaining_share(masks), masked, None
    yield "cut", method.remaining_share(masks), cut(masked, masks), masked


def _with_statistics(setup: Setup, net: nn.Module, client: int) -> nn.Module:
    """The net on the training device, for inference, its norms with statistics of this client's data."""
    net = net.to(setup.data.device).eval()
    examples = torch.tensor(setup.partition.client(client)[:CALIBRATION_EXAMPLES], device=setup.data.device)
    for norm in batch_norms(net):
        norm.running_mean = torch.zeros(norm.num_features, device=setup.data.device)
        norm.running_var = torch.ones(norm.num_features, device=setup.data.device)
        norm.momentum, norm.track_running_stats = 1.0, True
        norm.train()
    with torch.no_grad():
        net(setup.data.train_batch(Draws(examples[None]), 0, 0, len(examples))[0])
    return net.eval()


def _measured(
    client: str, name: str, kept: float, net: nn.Module, inputs: torch.Tensor, times: int, reference: nn.Module | None
) -> Row:
    def infer() -> None:
        net(inputs)
        if inputs.is_cuda:
            torch.cuda.synchronize(inputs.device)

    with torch.inference_mode():
        logits = net(inputs)
        wanted = logits if reference is None else reference(inputs)
        difference = None if reference is None else float((logits - wanted).abs().max() / wanted.abs().max())
        seconds = [_timed(infer) for _ in range(WARM_UP + times)][WARM_UP:]
        median = statistics.median(seconds)
        # As many as last long enough for NVML.
        joules = _energy(infer, inputs.device, 1 + int(energy.LEAST_S / max(median, 1e-6)))
    found = costs.measure(net, tuple(inputs.shape[1:]))
    peak = 4 * (found.params + _largest_layer(net, inputs))
    return Row(client, name, kept, found, peak, median, joules, difference)


def _timed(action: Callable[[], None]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _largest_layer(net: nn.Module, inputs: torch.Tensor) -> int:
    """Numbers that the input and the output of a layer have together, at most."""
    largest = [0]

    def look(module: nn.Module, given: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        largest[0] = max(largest[0], given[0].numel() + output.numel())

    handles = [part.register_forward_hook(look) for part in net.modules() if not any(part.children())]
    net(inputs)
    for handle in handles:
        handle.remove()
    return largest[0]


def _energy(action: Callable[[], None], device: torch.device, times: int) -> float | None:
    """Joules of one call on a GPU; None where they cannot be measured."""

    def act() -> None:
        for _ in range(times):
            action()

    try:
        return energy.joules(act, device) / times
    except energy.NoEnergyError:
        return None
