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


Refuses = Callable[..., None]


@pytest.fixture
def refuses(comm: Communicator, tmp_path: Path, on_all_ranks: Callable[[bool, str], None]) -> Refuses:
    """`refuses(what, rank, *words)`: a run with these words is refused in one line on every rank, before it has a
    folder, because ranks have a different `what`; it names `rank`."""

    def check(what: str, rank: int, *words: str) -> None:
        run_dir, line = Path(comm.bcast_object(str(tmp_path))) / "run", "was not refused"
        try:
            run_all(small_config(*words), comm, run_dir)
        except StartupError as error:
            line = error.text()
        ok = f"different {what}" in line and f" on rank {rank} (" in line and "\n" not in line
        on_all_ranks(ok and not run_dir.exists(), f"refused with: {line}")

    return check


def test_one_rank_with_other_data(refuses: Refuses, comm: Communicator, tmp_path: Path) -> None:
    """Each has data of its own, as on nodes with local disks; the last rank's have another label."""
    ours, last = dataset(), comm.size - 1
    labels = ours.train_y.copy()
    labels[0] = 5
    files.save(options_in(tmp_path / "data"), replace(ours, train_y=labels) if comm.rank == last else ours)
    words = ("data.name=har", f"data.root={tmp_path / 'data'}", "model.name=mlp", "clients.count=4")
    refuses("data", last, *words, "method.name=fedavg")


def test_one_rank_that_knows_other_clients(
    refuses: Refuses, comm: Communicator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another file of availability, or a function that asks the rank."""
    last = comm.size - 1
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("times.csv").write_text("0,1,9\n" if comm.rank == last else "0,1,3\n")
    Path("sampling_of_rank.py").write_text(f"def turn(round, seed): return [{int(comm.rank == last)}]")
    refuses("availability, ", last, "clients.availability=times.csv")
    refuses("sampling, ", last, "clients.sampling=sampling_of_rank:turn")


def test_one_rank_with_another_config(refuses: Refuses, comm: Communicator, tmp_path: Path) -> None:
    """A free key, too: ranks must agree on the exchange. Where data lie and what is written may differ."""
    refuses("config", 0, f"mpi.exchange={'gather' if comm.rank else 'reduce'}")
    own = (f"output.dir={tmp_path}", f"output.keep_checkpoints={comm.rank + 1}")
    start.load_material(small_config(*own), comm)


@pytest.mark.parametrize(("net", "what"), [("Ordered", "parameters"), ("Sums", "outputs for the first examples")])
def test_one_rank_whose_net_differs(
    refuses: Refuses, comm: Communicator, monkeypatch: pytest.MonkeyPatch, net: str, what: str
) -> None:
    """As where a set gives names in the order of PYTHONHASHSEED."""
    last = comm.size - 1
    monkeypatch.setenv("ORDER", str(int(comm.rank == last)))
    refuses(what, last, f"model.name=mynets:{net}", "method.name=fedavg")


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
