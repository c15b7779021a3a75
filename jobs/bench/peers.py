"""Compares the rounds of fedmpi, pfl-research and Flower with bare loops: the same nets, seeded images and settings.

    python jobs/bench/peers.py FOLDER [--workloads cnn,resnet18] [--peers fedmpi,pfl,flower] [--repeats 3]

FOLDER gets an environment for each peer, once, from the package registry; torch is this environment's. Two processes
train on one thread each; fedmpi's rank 0 and Flower's server come on top. All take turns. It prints for each the
seconds of a round, its ratio to the bare loop of the same turn with its spread, and the most memory that all its
processes have together (PSS).
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import measuring
import psutil
import torch
from measuring import pss_bytes, ratio_text
from peer_process import RATE, WORKERS, WORKLOADS

from fedmpi.mpi.mpirun import environment, start_words

PACKAGES = {"pfl": "pfl[pytorch]==0.6.0", "flower": "flwr[simulation]==1.41.0"}
HERE = Path(__file__).resolve().parent
LOOKS_EVERY_S = 1.0
ROUNDS = re.compile(r"\[\d[\d., e-]*\]")
"""The line with the seconds of all rounds, among others that Ray and pfl print."""


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw, allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workloads", type=measuring.some_of(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--peers", type=measuring.some_of(["fedmpi", *PACKAGES]), default=["fedmpi", *PACKAGES])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    for peer in arguments.peers:
        if peer in PACKAGES and not (arguments.folder / peer / "complete").exists():
            make_environment(arguments.folder / peer, PACKAGES[peer])
    for workload in arguments.workloads:
        compare(workload, ["bare", *arguments.peers], arguments.folder, arguments.repeats)


def make_environment(folder: Path, package: str) -> None:
    """Makes a virtual environment that has `package`, and takes from this one what it does not bring."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "torch.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-input", package], check=True)
    (folder / "complete").touch()


def compare(workload: str, peers: Sequence[str], folder: Path, repeats: int) -> None:
    """Prints a line for each peer."""
    rounds: dict[str, list[float]] = {peer: [] for peer in peers}
    peaks: dict[str, list[int]] = {peer: [] for peer in peers}
    for _ in range(repeats):
        for peer in peers:
            seconds, peak = measure(peer, workload, folder)
            rounds[peer].append(statistics.median(seconds[max(1, len(seconds) // 6) :]))
            peaks[peer].append(peak)
    for peer in peers:
        ratio = ratio_text(rounds[peer], rounds["bare"])
        memory = f"{1e-6 * statistics.median(peaks[peer]):.0f} MB"
        print(f"{workload}, {peer}: a round {statistics.median(rounds[peer]):.2f} s, {ratio}, {memory}", flush=True)


def measure(peer: str, workload: str, folder: Path) -> tuple[list[float], int]:
    """Returns the seconds of each round, and the most bytes in memory. Ends this program where the peer fails."""
    more = {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1"}
    more |= {"TQDM_DISABLE": "1", "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    with tempfile.TemporaryDirectory() as scratch:
        if peer == "fedmpi":
            command = [*start_words(1 + WORKERS), sys.executable, "-m", "fedmpi.main", *settings(workload)]
            command += ["--run-dir", f"{scratch}/run"]
            given = environment(1 + WORKERS)
        else:
            python = sys.executable if peer == "bare" else str(folder / peer / "bin" / "python")
            command = [python, "-W", "ignore", str(HERE / "peer_process.py"), peer, workload]
            given = dict(os.environ)
        with open(f"{scratch}/out", "w") as out:
            job = psutil.Popen(command, env=given | more, stdout=out, stderr=subprocess.STDOUT)
            peak = 0
            while job.poll() is None:
                peak = max(peak, pss_bytes(job))
                time.sleep(LOOKS_EVERY_S)
        lines = Path(f"{scratch}/out").read_text().splitlines()
        if job.returncode:
            sys.exit("\n".join([f"{peer} failed:", *lines[-20:]]))
        if peer == "fedmpi":
            records = Path(f"{scratch}/run/rounds.jsonl").read_text().splitlines()
            return [json.loads(line)["seconds"]["wall"] for line in records], peak
        return json.loads([line for line in lines if ROUNDS.fullmatch(line)][-1]), peak


def settings(workload: str) -> list[str]:
    """Returns fedmpi's config, in words."""
    sizes = WORKLOADS[workload]
    net = "peer_process:small_cnn" if workload == "cnn" else "resnet18"
    return f"""rounds={sizes["rounds"]} evaluation.every=1000 output.checkpoint_every=1000 output.tensorboard=false
        output.report=false method.name=fedavg model.name={net} data.name=peer_process:images data.workload={workload}
        partition.name=iid clients.count={sizes["clients"]} clients.per_round={sizes["cohort"]} train.augment=false
        train.masked_loss=false train.batch_size={sizes["batch"]} train.local_epochs=1 train.lr={RATE}
        train.momentum={sizes["momentum"]} train.weight_decay=0""".split()


if __name__ == "__main__":
    measuring.start(main)
