"""The data lie once in the memory of a node: one rank reads them, the others have the same pages."""

import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small_runs import small_config

from fedmpi.config.load import load
from fedmpi.data import lending, own
from fedmpi.data.dataset import Dataset, digest_of, load_data
from fedmpi.mpi.communicator import Communicator
from fedmpi.running import start

pytestmark = pytest.mark.mpi(min_size=2)


def files_of_data() -> set[str]:
    """The numbers of the files without a name that this process maps."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "memfd:fedmpi-data" in line}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Dataset]:
    """What this rank has read."""
    found: list[Dataset] = []
    read = load_data

    def noted(options: object) -> Dataset:
        found.append(read(options))
        return found[-1]

    monkeypatch.setattr(start, "load_data", noted)
    return found


def test_one_rank_reads(comm: Communicator, reads: list[Dataset], on_all_ranks: Callable) -> None:
    gc.collect()  # an earlier test's run may refer to itself, and to its data
    material = start.load_material(small_config(), comm)
    files = comm.allgather_object(" ".join(files_of_data()))
    on_all_ranks(len(reads) == (comm.rank == comm.size - 1), f"read {len(reads)} times")
    on_all_ranks(files[0] != "" and len(set(files)) == 1, f"maps {files}")
    digest = material.dataset.digest
    on_all_ranks(digest_of(material.dataset.arrays) == digest, "has other examples")
    del material
    gc.collect()
    on_all_ranks(not files_of_data(), "still has them")


def test_a_rank_that_cannot_have_them_reads_them(
    comm: Communicator, reads: list[Dataset], on_all_ranks: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.is_root:
        monkeypatch.setattr(lending, "taken", lambda text: None)
    material = start.load_material(small_config(), comm)
    on_all_ranks(len(reads) == (comm.rank in (0, comm.size - 1)), f"read {len(reads)} times")
    on_all_ranks(digest_of(material.dataset.arrays) == material.dataset.digest, "has other examples")


def test_data_that_were_read_to_know_them(comm: Communicator, tmp_path: Path, on_all_ranks: Callable) -> None:
    """All ranks have read them before, and keep what is known of them only."""
    path = Path(comm.bcast_object(str(tmp_path)), "mine.npz")
    if comm.is_root:
        x, y = np.arange(24, dtype=np.float32).reshape(12, 2), np.arange(12) % 2
        np.savez(path, train_x=x, train_y=y, test_x=x, test_y=y)
    comm.wait_for_all()
    words = (
        "data.name=npz",
        f"data.path={path}",
        "model.name=mlp",
        "clients.count=2",
        "clients.per_round=1",
        "method.name=fedavg",
    )
    config = load(None, words)
    material = start.load_material(config, comm)
    on_all_ranks(own._read.cache_info().currsize == 0, "has them twice")
    on_all_ranks(config.data.used().num_train == 12, "has forgotten what is known of them")
    again = load_data(config.data)
    on_all_ranks(again.digest == material.dataset.digest, "reads others")
