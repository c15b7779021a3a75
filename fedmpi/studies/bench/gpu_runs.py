"""Sections of the GPU benchmark that start other processes: tests, and whole runs on several ranks."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import torch

from fedmpi.config.address import CONFIGS
from fedmpi.errors import UserError, counted
from fedmpi.mpi.mpirun import environment, start_words
from fedmpi.mpi.version import library_version
from fedmpi.report.table_text import markdown_lines
from fedmpi.store import checkpoint
from fedmpi.store.run_dir import RunDir
from fedmpi.store.stored import digest_of
from fedmpi.studies.bench.sections import Measuring, SectionError

_SAYS = ("CUDA graphs", "GPU-aware")
"""Lines of a run's log that are repeated below its digest."""
_BITS = ((1, "gather", "off"), (3, "reduce", "off"), (1, "gather", "auto"), (3, "gather", "auto"))
"""Ranks, `mpi.exchange` and `train.cuda_graph` of each run."""
_WORKERS = ((1, "off"), (2, "off"), (3, "off"), (3, "auto"))
# Two rounds between the first and the last, which is tested and saved.
_LONGER = ("rounds=4", "clients.per_round=6")
_MORE_DATA = ("data.num_train=6400",)


def machine(measuring: Measuring) -> list[str]:
    """What the numbers are of."""
    found = {"torch": torch.__version__, "MPI": library_version() or "none"}
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(0)
        found["GPU"] = f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, sm_{gpu.major}{gpu.minor}"
        cudnn: Callable[[], int | None] = torch.backends.cudnn.version
        found["libraries"] = f"CUDA {torch.version.cuda}, cuDNN {cudnn()}"
    else:
        found["GPU"] = "none"
    last = {word.partition("=")[0]: word for word in measuring.words}
    found["settings"] = " ".join(f"`{word}`" for word in last.values())
    return [f"- {name}: {text}" for name, text in found.items()]


def tests(measuring: Measuring) -> list[str]:
    """Runs those marked `gpu`. Raises `UserError` where they are not beside the package, or break off, and
    `SectionError` where one fails or cannot be imported.
    """
    top = CONFIGS.parent
    if not (top / "tests").is_dir():
        raise UserError("tests", f"are not at {top}: run this from a clone of the repository")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        options = [
            "-q",
            "-m",
            "gpu",
            f"--junitxml={report}",
            "-p",
            "no:cacheprovider",
            "--continue-on-collection-errors",
        ]
        where = "tests/gpu" if measuring.is_dry else "tests"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, where], cwd=top, capture_output=True, text=True
        )
        if not report.exists():
            raise UserError("tests", f"pytest broke off: {(done.stdout + done.stderr).strip()[-500:]}")
        found = list(_outcomes(report))
    lines, kinds = [], [kind for kind, *_ in found]
    for kind in ("passed", "failed", "skipped"):
        lines.append(f"- {kind}: {measuring.shown(kinds.count(kind))}")
        if kind == "failed" or (kind == "skipped" and not measuring.is_dry):
            lines += [f"  - `{name}`: {why}" for its, name, why in found if its == kind]
    if done.returncode:
        raise SectionError(f"pytest ended with exit code {done.returncode}; {kinds.count('failed')} failed", lines)
    return lines


def _outcomes(report: Path) -> Iterator[tuple[str, str, str]]:
    """Of each test, and each module that cannot be imported: what became of it, its name, and a line that says why."""
    for case in ElementTree.parse(report).iter("testcase"):
        name, kind, why = f"{case.get('classname')}::{case.get('name')}", "passed", ""
        for found in case:
            if found.tag in ("failure", "error", "skipped"):
                kind = "skipped" if found.tag == "skipped" else "failed"
                why = (found.get("message") or "").partition("\n")[0]
                if why == "collection failure":  # the error is the last line that pytest marks
                    why = next((line[1:].strip() for line in _last_first(found.text) if line.startswith("E ")), why)
        yield kind, name, why


def _last_first(text: str | None) -> list[str]:
    return (text or "").splitlines()[::-1]


def bits(measuring: Measuring) -> list[str]:
    """Digests of the servers' states after the last round: fedmpi promises equal ones. Raises `SectionError`."""
    rows, digests, said = [], [], []
    for ranks, exchange, graph in _BITS[:2] if measuring.is_dry else _BITS:
        words = (f"mpi.exchange={exchange}", f"train.cuda_graph={graph}", "output.keep_checkpoints=1")
        digest, printed = _digest(measuring.but(*words), ranks)
        digests.append(digest)
        said += [line for line in printed.splitlines() if any(word in line for word in _SAYS)]
        rows.append([str(ranks), exchange, graph, f"`{digest}`"])
    if is_equal := len(set(digests)) == 1:
        rows = [[*row[:-1], measuring.shown(row[-1])] for row in rows]
    notes = [] if measuring.is_dry else [f"- {line}" for line in dict.fromkeys(said)]
    after = f"digest after {counted(measuring.config.rounds, 'round')}"
    heads = ["ranks", "exchange", "train.cuda_graph", after]
    lines = [
        *markdown_lines(heads, rows, 4),
        "",
        f"- {measuring.shown('all are equal') if is_equal else '**they differ**'}",
    ]
    if not is_equal:
        raise SectionError("the digests differ", [*lines, *notes])
    return [*lines, *notes]


def _digest(measuring: Measuring, ranks: int) -> tuple[str, str]:
    """That of the server's state after a run, and what the run prints."""
    with tempfile.TemporaryDirectory() as folder:
        printed = _run(measuring, ranks, folder)
        snapshot = checkpoint.load_newest_intact(RunDir(Path(folder, "run")), print)
        assert snapshot is not None
        return digest_of(snapshot.server), printed


def workers(measuring: Measuring) -> list[str]:
    """Images per second of whole rounds, from broadcast to update, the median of two. Rank 0 trains nothing."""
    rows = []
    longer = measuring.but(*_LONGER, *(() if measuring.is_dry else _MORE_DATA))
    for count, graph in _WORKERS[:1] if measuring.is_dry else _WORKERS:
        with tempfile.TemporaryDirectory() as folder:
            _run(longer.but(f"train.cuda_graph={graph}"), 1 + count, folder)
            records = [json.loads(line) for line in Path(folder, "run", "rounds.jsonl").read_text().splitlines()]
        wall_s = statistics.median(record["seconds"]["wall"] for record in records[1:-1])
        config = longer.config
        share = config.clients.per_round / config.clients.count
        images = share * config.data.used().num_train * config.train.local_epochs
        cells = measuring.shown(wall_s, "{:.3f} s"), measuring.shown(images / wall_s, "{:,.0f}")
        rows.append([str(count), graph, *cells])
    return markdown_lines(["workers", "train.cuda_graph", "a round", "images per second"], rows, 2)


def _run(measuring: Measuring, ranks: int, folder: str) -> str:
    """What the run in `folder` prints. Raises `SectionError`; the run itself has said why on stderr."""
    words = [*measuring.words, "--run-dir", str(Path(folder, "run"))]
    command = [*start_words(ranks), sys.executable, "-m", "fedmpi.main", *words]
    done = subprocess.run(command, env=environment(ranks), stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SectionError(f"the run on {counted(ranks, 'rank')} ended with exit code {done.returncode}")
    return done.stdout
