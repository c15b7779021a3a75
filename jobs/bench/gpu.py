"""Measures what one GPU does: local steps of each rank ratio, and several workers on it.

    python jobs/bench/gpu.py [section.key=value ...] [--only steps,workers]

steps    images per second of ResNet-18 in batches of 64 in float32 and in half precision: as fedmpi computes them,
         in a loop written by hand under fedmpi's settings of torch, and in that loop freely (any kernel, the fastest of
         cuDNN's, TF32); and the memory that torch has allocated at most
workers  images per second of whole rounds of 1, 2 and 3 workers on the one GPU

The tests that need a GPU are another command: python -m pytest -m gpu.
"""

import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import measuring
import torch
from measuring import LONG, BareLoop, benchmark
from parts import train

from fedmpi.learning.determinism import settings_kept
from fedmpi.models.surgery.narrowing import fill
from fedmpi.mpi.communicator import SerialComm
from fedmpi.report.table_text import markdown_lines
from fedmpi.rounds.state import Setup

SETTINGS = f"""{LONG} data.name=synthetic data.shape=[3,32,32] data.classes=10 data.num_train=1280 data.num_test=100
    partition.name=iid clients.count=10 clients.per_round=4 model.name=resnet18 method.name=fedhm
    train.masked_loss=false train.batch_size=64 train.local_epochs=2 mpi.device=cuda mpi.server_device=cuda"""
WORKERS = (1, 2, 3)
STEPS = 5


def main() -> None:
    parser = measuring.parser(__doc__, pairs=0)
    only = measuring.some_of(["steps", "workers"])
    parser.add_argument("--only", type=only, default=["steps", "workers"], help="default steps,workers")
    parser.add_argument("--seconds", type=float, default=0.4, help="of each number of steps (default 0.4)")
    arguments = parser.parse_intermixed_args()
    words = measuring.settings(arguments, SETTINGS)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as the command does, before CUDA starts
    for name in arguments.only:
        print(*(steps(words, arguments.seconds) if name == "steps" else workers(words)), "", sep="\n", flush=True)


def steps(words: Sequence[str], least_s: float) -> list[str]:
    """Returns the table of steps, as Markdown."""
    rows = []
    for precision in ("fp32", half_precision()):
        with tempfile.TemporaryDirectory() as folder:
            setup = measuring.prepared(SerialComm(), Path(folder), [*words, f"train.precision={precision}"])
            for number, tier in enumerate(setup.method.tiers):
                rows.append([tier.name, precision, *measured(setup, number, least_s)])
    heads = ["rank ratio", "precision", "computed", "by hand", "by hand, freely", "allocated at most"]
    return markdown_lines(heads, rows, 2)


def half_precision() -> str:
    """Returns the one that the GPU has kernels for: fp16 before sm_80 (V100)."""
    is_older = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] < 8
    return "fp16" if is_older else "bf16"


def measured(setup: Setup, number: int, least_s: float) -> list[str]:
    """Returns the cells of a tier."""
    trainer, by_hand = setup.trainers[number], BareLoop(setup, [number])
    device, images = setup.data.device, STEPS * setup.config.train.batch_size
    # Factors come as zeros, which would train unlike others.
    fill(trainer.net.params.values(), torch.Generator().manual_seed(0))
    torch.get_device_module(device).reset_peak_memory_stats(device)
    ways = {"computed": partial(train, trainer, STEPS), "by hand": partial(by_hand.steps, number, STEPS)}
    per_s = {name: f"{images / median_s(action, least_s):,.0f}" for name, action in ways.items()}
    with settings_kept():
        torch.set_deterministic_debug_mode("default")
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cuda.matmul.allow_tf32 = True
        per_s["freely"] = f"{images / median_s(ways['by hand'], least_s):,.0f}"
    peak_mb = 1e-6 * torch.get_device_module(device).max_memory_allocated(device)
    return [*per_s.values(), f"{peak_mb:,.0f} MB"]


def median_s(action: Callable[[], object], least_s: float) -> float:
    """Returns the median time of a call, until the device is done; the first calls warm up."""
    timer = benchmark.Timer("action()", globals={"action": action}, num_threads=torch.get_num_threads())
    return float(timer.blocked_autorange(min_run_time=least_s).median)


def workers(words: Sequence[str]) -> list[str]:
    """Returns the table of workers, as Markdown; rank 0 trains nothing."""
    rows = []
    for count in WORKERS:
        longer = [*words, "data.num_train=6400", "clients.per_round=6"]
        found = measuring.launched(rounds, longer, 1 + count)
        rows.append([str(count), f"{found['round_s']:.3f} s", f"{found['images'] / found['round_s']:,.0f}"])
    return markdown_lines(["workers", "a round", "images per second"], rows, 1)


def rounds(comm: Any, folder: Path, words: Sequence[str]) -> dict[str, float]:
    """Returns the median seconds of a round, from broadcast to update, and how many images it trains."""
    setup = measuring.prepared(comm, folder, words)
    each, config = measuring.rounds_of(setup), setup.config
    next(each)
    round_s = [measuring.seconds_together(comm, lambda: next(each)) for _ in range(3)]
    share = config.clients.per_round / config.clients.count
    images = share * setup.data.info.num_train * config.train.local_epochs
    return {"round_s": statistics.median(round_s), "images": images}


if __name__ == "__main__":
    measuring.start(main)
