"""Ranks that do not have the same: refused where results would be wrong, said where bits may differ."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from launched import unfolded
from small_data import dataset, options_in
from small_runs import run_all, small_config

from fedmpi.data import files
from fedmpi.errors import StartupError
from fedmpi.mpi.communicator import Communicator
from fedmpi.running import made_with, start

pytestmark = pytest.mark.mpi(min_size=2)


def refused(comm: Communicator, folder: Path, *words: str) -> str:
    """What a run is refused with on this rank."""
    shared = comm.bcast_object(str(folder))
    try:
        run_all(small_config(*words), comm, Path(shared, "run"))
    except StartupError as error:
        is_clean = not Path(shared, "run").exists()
        return error.text() if is_clean else "left a run directory"
    return "was not refused"


def test_one_rank_with_other_data(comm: Communicator, tmp_path: Path, on_all_ranks: Callable) -> None:
    """Each has data of its own, as on nodes with local disks; the last rank's have another label."""
    ours, last = dataset(), comm.size - 1
    labels = ours.train_y.copy()
    labels[0] = 5
    files.save(options_in(tmp_path / "data"), replace(ours, train_y=labels) if comm.rank == last else ours)
    words = ("data.name=har", f"data.root={tmp_path / 'data'}", "model.name=mlp", "clients.count=4")
    line = refused(comm, tmp_path, *words, "method.name=fedavg")
    ok = "different data" in line and f" on rank {last} (" in line and "\n" not in line
    on_all_ranks(ok, f"refused with: {line}")


def test_one_rank_that_knows_other_clients(
    comm: Communicator, tmp_path: Path, on_all_ranks: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another file of availability, or a function that asks the rank."""
    last = comm.rank == comm.size - 1
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("times.csv").write_text("0,1,9\n" if last else "0,1,3\n")
    Path("sampling_of_rank.py").write_text(f"def turn(round, seed): return [{int(last)}]")
    for word in ("clients.availability=times.csv", "clients.sampling=sampling_of_rank:turn"):
        line = refused(comm, tmp_path, word)
        key = word.partition("=")[0].removeprefix("clients.")
        ok = f"ranks have different {key}, " in line and f" on rank {comm.size - 1} (" in line
        on_all_ranks(ok, f"refused with: {line}")


def test_one_rank_with_another_config(comm: Communicator, tmp_path: Path, on_all_ranks: Callable) -> None:
    """A free key, too: ranks must agree on the exchange. Where data lie and what is written may differ."""
    line = refused(comm, tmp_path, f"mpi.exchange={'gather' if comm.rank else 'reduce'}")
    on_all_ranks("different config" in line and " on rank 0 (" in line, f"refused with: {line}")
    own = (f"output.dir={tmp_path}", f"output.keep_checkpoints={comm.rank + 1}")
    start.load_material(small_config(*own), comm)


@pytest.mark.parametrize(("net", "what"), [("Ordered", "parameters"), ("Sums", "outputs for the first examples")])
def test_one_rank_whose_net_differs(
    net: str, what: str, comm: Communicator, tmp_path: Path, on_all_ranks: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a set gives names in the order of PYTHONHASHSEED: one line, before there is a run folder."""
    monkeypatch.setenv("ORDER", str(int(comm.rank == comm.size - 1)))
    line = refused(comm, tmp_path, f"model.name=mynets:{net}", "method.name=fedavg")
    ok = f"different {what}" in line and f" on rank {comm.size - 1} (" in line and "\n" not in line
    on_all_ranks(ok, f"refused with: {line}")


def test_one_rank_with_other_kernels(
    comm: Communicator,
    tmp_path: Path,
    on_all_ranks: Callable,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Said once, by rank 0, and the run continues.

    The variable is one that no library reads: this process would keep the other kernels for the tests that follow.
    """
    monkeypatch.setattr(made_with, "VARIABLES", ("MAX_ISA_OF_A_TEST",))
    if comm.rank == 1:
        monkeypatch.setenv("MAX_ISA_OF_A_TEST", "SSE41")
    run_all(small_config("rounds=1"), comm, Path(comm.bcast_object(str(tmp_path / "run"))))
    lines = [line for line in unfolded(capfd.readouterr().err).splitlines() if "ranks differ" in line]
    ok = len(lines) == 1 and "MAX_ISA_OF_A_TEST=SSE41 on rank 1 (" in lines[0] if comm.is_root else not lines
    on_all_ranks(ok, f"said: {lines}")
