"""Every configs/*_digits.yaml computes the same bits on one rank and on all ranks of this job, real data included."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from small_runs import finished, run_all

from fedmpi.config.load import load
from fedmpi.mpi.serial import SerialComm

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedmpi.mpi.comm import Comm

pytestmark = pytest.mark.mpi(min_size=5)

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
DIGITS = sorted(path for path in CONFIGS.glob("*_digits.yaml") if not path.stem.startswith("base"))
SHORT = ("rounds=2", "train.local_epochs=1", "output.progress=off", "output.tensorboard=false")
# What a run of two rounds needs to come to everything that the method does.
ALSO = {"fdnnc_bfirst_digits": ("method.switch_round=1",), "lgfedavg_digits": ("method.pretrain_rounds=1",)}


@pytest.mark.parametrize("path", DIGITS, ids=lambda path: path.stem)
def test_one_rank_and_all_ranks(comm: Comm, tmp_path: Path, on_all_ranks: Callable, path: Path) -> None:
    config = load(path, [*SHORT, *ALSO.get(path.stem, ())])
    folder = Path(comm.allgather_text(str(tmp_path))[0])
    try:
        if comm.rank == 0:
            run_all(config, SerialComm(), folder / "alone")
        comm.wait_for_all()
        run_all(config, comm, folder / "together")
    except BaseException:
        traceback.print_exc()
        comm.abort(1)
    is_same = comm.rank > 0 or finished(folder / "alone") == finished(folder / "together")
    on_all_ranks(is_same, f"{path.stem} has other bits on {comm.size} ranks")
