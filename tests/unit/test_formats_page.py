"""`fedmpi/store/README.md` names every file, key, group and attribute that a run writes."""

from pathlib import Path

import h5py
import pytest
from small_runs import undisturbed

from fedmpi.report.records import read_records
from fedmpi.store.manifest import read_starts
from fedmpi.store.run_dir import RunDir

PAGE = (Path(__file__).resolve().parents[2] / "fedmpi" / "store" / "README.md").read_text()


def test_a_round_that_was_not_tested_has_no_tiers(tmp_path: Path) -> None:
    found = undisturbed(tmp_path, "method.name=fedavg", "rounds=3", "evaluation.every=2").records
    assert [[*record.get("tiers", ("absent",))] for record in found] == [["absent"], ["1"], ["1"]]


@pytest.mark.parametrize("method", ["fedhm", "topk"])
def test_everything_is_on_the_page(tmp_path: Path, method: str) -> None:
    undisturbed(tmp_path, f"method.name={method}", "evaluation.personal=on", "evaluation.bn=restat")
    run = RunDir(tmp_path / "undisturbed")
    names = [path.name for path in run.path.iterdir() if path.name[0] != "."]
    names += [key for record in read_records(run) for key in record]
    names += [key for start in read_starts(run) for key in start]
    for path in run.path.rglob("*.h5"):
        with h5py.File(path) as file:
            own = {name for name in file.attrs if not name.endswith("_digest") or name == "data_digest"}
            names += [*own, *file]
    assert {name for name in names if name not in PAGE} == set()
