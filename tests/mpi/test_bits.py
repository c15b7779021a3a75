"""Contract 1: the bits of a run depend neither on the number of ranks nor on the exchange, nor on interruptions.

Each case runs on all ranks of this job and, alone, on rank 0; server state, scores of every round,
losses, client memories and protocol bytes must be the same, to the last bit.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import brought_nets
import method_cases
import pytest
from small_runs import TOY, Finished, finished, run_all, small_config

from fedmpi.check.bits import difference, interrupted_run
from fedmpi.errors import StartupError
from fedmpi.mpi.serial import SerialComm
from fedmpi.store import checkpoint

if TYPE_CHECKING:
    from fedmpi.mpi.comm import Comm

pytestmark = pytest.mark.mpi(min_size=2)

UNEVEN = ("partition.name=class_dirichlet", "partition.alpha=0.5", "train.augment=true")
DYNAMIC = (*UNEVEN, "clients.tier_assignment=dynamic")
CASES: dict[str, tuple[str, ...]] = {
    "fedavg": (*UNEVEN, "method.name=fedavg", "method.weighting=samples"),
    "fedhm": (*DYNAMIC, "method.name=fedhm", "method.rank_ratio=[1,0.5,0.25,0.125]"),
    "toy": (*DYNAMIC, *TOY),
}
EXCHANGES: dict[str, tuple[str, ...]] = {
    "gather": ("mpi.exchange=gather",),
    "reduce": ("mpi.exchange=reduce",),
    "auto": ("mpi.exchange=auto",),
    "gather-server-trains": ("mpi.exchange=gather", "mpi.server_trains=true"),
    "reduce-server-trains": ("mpi.exchange=reduce", "mpi.server_trains=true"),
}
NETS: dict[str, tuple[str, ...]] = {
    "torchvision": ("model.name=torchvision:resnet18", "data.shape=[3,32,32]", "data.num_train=64"),
    **{part: ("model.name=brought_nets:BroughtOptions", f"model.part={part}") for part in brought_nets.ALLOWED},
}
SETTINGS: dict[str, tuple[str, ...]] = {
    "restat": ("evaluation.bn=restat", "evaluation.batch_size=24"),
    "batch": ("evaluation.bn=batch",),
    "bf16": ("train.precision=bf16",),
    "contiguous": ("train.memory_format=contiguous",),
    "drop": ("train.on_divergence=drop", "train.lr=30", "train.schedule.milestones=[]"),
    "one-client": ("clients.per_round=1",),
}


class Alone:
    """What rank 0 computes by itself, once for each config; the other ranks sleep meanwhile and get None."""

    def __init__(self, comm: Comm, folder: Path) -> None:
        self._comm, self._folder, self._known = comm, folder, dict[tuple[str, ...], Finished]()

    def __call__(self, *overrides: str) -> Finished | None:
        if self._comm.rank == 0 and overrides not in self._known:
            folder = self._folder / str(len(self._known))
            run_all(small_config(*overrides), SerialComm(), folder)
            self._known[overrides] = finished(folder)
        self._comm.wait_for_all()
        return self._known.get(overrides)


@pytest.fixture(scope="module")
def alone(comm: Comm, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    return Alone(comm, tmp_path_factory.mktemp("alone"))


@pytest.fixture
def folder(comm: Comm, tmp_path: Path) -> Path:
    """Rank 0's, known to all."""
    return Path(comm.allgather_text(str(tmp_path / "run"))[0])


@pytest.fixture
def all_or_none(comm: Comm, capfd: pytest.CaptureFixture[str]) -> Callable[[], object]:
    """A block in which an exception on one rank ends all: the others wait for it in a collective."""

    @contextmanager
    def block() -> Iterator[None]:
        try:
            yield
        except BaseException:
            with capfd.disabled():
                traceback.print_exc()
            comm.abort(1)

    return block


def check(
    comm: Comm,
    alone: Alone,
    folder: Path,
    all_or_none: Callable,
    on_all_ranks: Callable,
    *,
    case: tuple[str, ...],
    how: tuple[str, ...] = (),
) -> None:
    expected = alone(*case)
    with all_or_none():
        run_all(small_config(*case, *how), comm, folder)
    found = "" if expected is None else difference(finished(folder), expected)
    on_all_ranks(found == "", found)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("case", CASES)
def test_ranks_and_exchange_change_nothing(
    comm: Comm, alone: Alone, folder: Path, all_or_none: Callable, on_all_ranks: Callable, case: str, exchange: str
) -> None:
    check(comm, alone, folder, all_or_none, on_all_ranks, case=(*CASES[case], "rounds=2"), how=EXCHANGES[exchange])


@pytest.mark.parametrize("case", method_cases.CASES)
def test_every_method_keeps_its_bits(
    comm: Comm, alone: Alone, folder: Path, all_or_none: Callable, on_all_ranks: Callable, case: str
) -> None:
    """Two rounds by gather and, resumed, a third by reduce, on all ranks; personal tests on. Against one process."""
    words = method_cases.CASES[case]
    expected = alone(*words, "evaluation.personal=on", "rounds=3")
    with all_or_none():
        interrupted_run(comm, folder, words)
    found = "" if expected is None else difference(finished(folder), expected)
    on_all_ranks(found == "", found)


@pytest.mark.parametrize("net", NETS)
def test_nets_of_others_keep_the_bits(
    comm: Comm, alone: Alone, folder: Path, all_or_none: Callable, on_all_ranks: Callable, net: str
) -> None:
    """Also those that keep running statistics, draw random numbers outside torch or have buffers."""
    case = (*NETS[net], "method.name=fedavg", "evaluation.bn=batch", "rounds=1")
    check(comm, alone, folder, all_or_none, on_all_ranks, case=case)


def test_a_net_that_keeps_something_is_refused_by_all(comm: Comm, folder: Path, on_all_ranks: Callable) -> None:
    """With the same line on every rank, the server included."""
    text = ""
    try:
        run_all(
            small_config("model.name=brought_nets:BroughtOptions", "model.part=attribute", "method.name=fedavg"),
            comm,
            folder,
        )
    except StartupError as error:
        text = error.text()
    on_all_ranks("'part' (CountsSteps)" in text and "\n" not in text, f"not refused in one line: {text!r}")


@pytest.mark.parametrize("setting", SETTINGS)
def test_other_settings_keep_the_bits(
    comm: Comm, alone: Alone, folder: Path, all_or_none: Callable, on_all_ranks: Callable, setting: str
) -> None:
    case = (*CASES["fedhm"], *SETTINGS[setting], "rounds=2")
    check(comm, alone, folder, all_or_none, on_all_ranks, case=case)
    expected = alone(*case)
    is_shown = expected is None or setting != "drop" or [len(r["dropped"]) for r in expected.records] == [2, 4]
    on_all_ranks(is_shown, "some clients of round 1 and all of round 2 should diverge here")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("first", ["ranks", "alone"])
def test_a_run_goes_on_with_other_ranks(
    comm: Comm, alone: Alone, folder: Path, all_or_none: Callable, on_all_ranks: Callable, case: str, first: str
) -> None:
    """Two rounds on these ranks and two on rank 0 alone, or the other way round, equal four rounds alone."""
    expected = alone(*CASES[case], "rounds=4")
    with all_or_none():
        for rounds, on_ranks in ((2, first == "ranks"), (4, first != "ranks")):
            config = small_config(
                *CASES[case], f"rounds={rounds}", f"mpi.exchange={'gather' if on_ranks else 'reduce'}"
            )
            if on_ranks:
                run_all(config, comm, folder, resume=rounds == 4)
            elif comm.rank == 0:
                run_all(config, SerialComm(), folder, resume=rounds == 4)
            comm.wait_for_all()
    found = "" if expected is None else difference(finished(folder), expected)
    on_all_ranks(found == "", found)


def test_memories_of_the_next_round_survive_a_slow_save(
    comm: Comm,
    alone: Alone,
    folder: Path,
    all_or_none: Callable,
    on_all_ranks: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While rank 0 saves round t and prunes old memories, workers write those of round t + 1.

    Saving takes 0.3 s here, longer than a round, so that they are there when pruning begins.
    """
    case = (*CASES["toy"], "rounds=4")
    expected = alone(*case)
    save = checkpoint.save

    def slow_save(*args: object, **kwargs: object) -> Path:
        time.sleep(0.3)
        return save(*args, **kwargs)

    monkeypatch.setattr(checkpoint, "save", slow_save)
    with all_or_none():
        run_all(small_config(*case), comm, folder)
    found = "" if expected is None else difference(finished(folder), expected)
    on_all_ranks(found == "", found)


def test_bits_differ_where_they_should(comm: Comm, alone: Alone, on_all_ranks: Callable) -> None:
    """The comparison sees a difference: another seed gives another state and other scores."""
    pair = alone(*CASES["fedhm"], "rounds=2"), alone(*CASES["fedhm"], "rounds=2", "seed=1")
    found = "" if pair[0] is None or pair[1] is None else difference(*pair)
    on_all_ranks(comm.rank > 0 or ("server state" in found and "tiers" in found), "another seed gave the same bits")
