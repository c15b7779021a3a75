"""What `tests/torture/random_runs.py` draws, and that its comparison sees every kind of difference."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_runs import run_all, small_config
from torture.combinations import METHODS, NUM_RANKS, draw, write_data
from torture.random_runs import judge
from torture.run_bytes import differences, leftovers

from fedmpi.data import reading
from fedmpi.data.sets.har import Har
from fedmpi.data.sets.shakespeare import Shakespeare
from fedmpi.disk import hdf5
from fedmpi.mpi.serial import SerialComm
from fedmpi.store import checkpoint
from fedmpi.store.run_dir import RunDir

TOPK = ("method.name=topk", "evaluation.personal=on")
KEPT = "output.keep_checkpoints=3"


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference") / "run"
    run_all(small_config(*TOPK, KEPT), SerialComm(), folder)
    return folder


@pytest.fixture
def other(reference: Path, tmp_path: Path) -> Path:
    shutil.copytree(reference, tmp_path / "other")
    return tmp_path / "other"


def newest(run: Path) -> Path:
    return RunDir(run).checkpoints()[0][1]


def test_a_combination_is_named_by_two_numbers(tmp_path: Path) -> None:
    assert draw(3, 5, tmp_path) == draw(3, 5, tmp_path)
    assert draw(3, 5, tmp_path) != draw(4, 5, tmp_path)
    assert {draw(3, number, tmp_path).method for number in range(40, 40 + len(METHODS))} == set(METHODS)


def test_variants_have_all_numbers_of_ranks(tmp_path: Path) -> None:
    for number in range(8):
        combination = draw(1, number, tmp_path)
        sizes = {leg.size for variant in combination.variants for leg in variant}
        assert sizes >= {1, 2, 3, 5} and max(sizes) == NUM_RANKS
        assert all(variant[-1].stop_after is None and variant[-1].fault is None for variant in combination.variants)


def test_prepared_examples_can_be_read(tmp_path: Path) -> None:
    write_data(tmp_path)
    counts = {"root": str(tmp_path), "num_train": 96, "num_test": 30, "num_groups": 6}
    for options in (Har(form="features", **counts), Shakespeare(length=8, **counts)):
        assert len(reading.load(options).train_y) == 96


def test_the_same_run_again_has_no_difference(reference: Path, tmp_path: Path) -> None:
    """Saved less often, by another exchange, and resumed: no difference, although files and config are others."""
    again = tmp_path / "again"
    own = ("output.checkpoint_every=2", "output.keep_checkpoints=1", "mpi.exchange=reduce")
    run_all(small_config(*TOPK, *own, "rounds=2"), SerialComm(), again)
    run_all(small_config(*TOPK, *own), SerialComm(), again, resume=True)
    assert newest(again).read_bytes() != newest(reference).read_bytes()
    assert differences(reference, again) == []


def test_another_seed_differs_in_everything(reference: Path, tmp_path: Path) -> None:
    run_all(small_config(*TOPK, KEPT, "seed=1"), SerialComm(), tmp_path / "other")
    found = differences(reference, tmp_path / "other")
    files = ("memory/", "partition.h5", "report/summary.json", "report/clients.csv")
    for what in ("server_digest", "clients_digest", "attribute seed", "server/", "clients/", "train_loss", *files):
        assert any(what in line for line in found), what


def repack(run: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """The newest checkpoint with its attributes and tensors changed, and the checksum of what it is then."""
    with hdf5.opened(newest(run), checkpoint.KIND) as file:
        attributes, arrays = dict(file.attributes), {name: file.array(name).copy() for name in file.entries}
    change(attributes, arrays)
    newest(run).write_bytes(hdf5.pack(checkpoint.KIND, attributes, arrays))


def flip_a_bit(attributes: dict[str, Any], arrays: dict[str, Any]) -> None:
    name = next(name for name in arrays if name.startswith("server/") and arrays[name].size)
    arrays[name].reshape(-1).view("uint8")[0] ^= 1


def change_progress(attributes: dict[str, Any], arrays: dict[str, Any]) -> None:
    progress = json.loads(str(attributes["progress"]))
    attributes["progress"] = json.dumps({**progress, "best_round": {"1": 99}}, sort_keys=True)


def change_a_memory(run: Path) -> None:
    path = min(RunDir(run).memory_dir.rglob("*.h5"))
    path.write_bytes(path.read_bytes() + b"\0")


def change_a_record(run: Path) -> None:
    path = RunDir(run).records_path
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([first.replace('"lr": ', '"lr": 1'), *rest]) + "\n")


def lose_a_record(run: Path) -> None:
    path = RunDir(run).records_path
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "tensor": (lambda run: repack(run, flip_a_bit), "server/"),
    "attribute": (lambda run: repack(run, change_progress), "attribute progress"),
    "checkpoint": (lambda run: newest(run).unlink(), "checkpoints/round-000003.h5: missing"),
    "memory": (change_a_memory, "memory/"),
    "record": (change_a_record, "lr"),
    "lost record": (lose_a_record, "rounds.jsonl"),
    "partition": (lambda run: RunDir(run).partition_path.unlink(), "partition.h5"),
    "report": (lambda run: (run / "report" / "summary.json").write_text('{"tiers": []}'), "report/summary.json"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_single_change_is_seen(reference: Path, other: Path, change: str) -> None:
    assert differences(reference, other) == []
    make, told = CHANGES[change]
    make(other)
    found = differences(reference, other)
    assert found and any(told in line for line in found), found


def test_a_temporary_file_is_seen(other: Path) -> None:
    assert leftovers(other) == []
    (RunDir(other).memory_dir / ".x.tmp").touch()
    assert len(leftovers(other)) == 1


def test_a_variant_that_differs_or_ends_otherwise_is_a_problem(tmp_path: Path) -> None:
    """`judge` on what the ranks would leave: the second variant has other bits, the third has failed."""
    combination = draw(1, 0, tmp_path)
    folder = tmp_path / "0"
    (folder / "endings").mkdir(parents=True)
    for which, variant in enumerate(combination.variants):
        seed = "seed=1" if which == 1 else "seed=0"
        run_all(small_config(*TOPK, KEPT, seed), SerialComm(), folder / f"run-{which}")
        for nth, leg in enumerate(variant):
            for rank in range(leg.size):
                ended = {"ending": "failed", "text": "ValueError: x"} if which == 2 else {"ending": "finished"}
                (folder / "endings" / f"{which}-{nth}-{rank}.json").write_text(json.dumps(ended))
    outcome = judge(combination, folder, 1.0)
    assert any(line.startswith("variant 1,") and "server_digest" in line for line in outcome.problems)
    assert any(line.startswith("variant 2,") and "failed ValueError: x" in line for line in outcome.problems)
    assert not any(line.startswith(("variant 3,", "variant 4,")) for line in outcome.problems)
