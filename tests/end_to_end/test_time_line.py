"""Where the time went: what the closing line says is what the records and the manifest say, to the last save."""

import json
import time
from pathlib import Path

import pytest
from launched import RunMain
from small_runs import SMALL

from fedmpi.report.closing import time_line
from fedmpi.report.records import read_records
from fedmpi.store import checkpoint, manifest
from fedmpi.store.run_dir import RunDir

SAVE_S = 0.2


def spent(folder: RunDir) -> dict[str, float]:
    """Seconds by stage: of all records, and of what came after the last one of each start."""
    ends = [start["ended"] for start in manifest.read_starts(folder) if "ended" in start]
    total: dict[str, float] = {}
    for part in [*read_records(folder), *ends]:
        for stage, seconds in part["seconds"].items():
            total[stage] = total.get(stage, 0.0) + seconds
    return total


@pytest.mark.slow
def test_every_save_is_in_the_time_line(run_main: RunMain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three starts that save three times, at 0.2 s or more each: one that is stopped, one that ends, one more round."""
    save = checkpoint.save

    def slow_save(*args: object, **kwargs: object) -> Path:
        time.sleep(SAVE_S)
        return save(*args, **kwargs)

    monkeypatch.setattr(checkpoint, "save", slow_save)
    folder, words = RunDir(tmp_path / "run"), (*SMALL, "--run-dir", str(tmp_path / "run"), "--resume")
    for code, more in ((75, ("rounds=2", "mpi.time_limit_s=0.001")), (0, ("rounds=2",)), (0, ("rounds=3",))):
        assert run_main(*words, *more)[0] == code
    found = spent(folder)
    assert found["saving"] >= 3 * SAVE_S and found["wall"] >= found["saving"]
    assert [start["ended"]["round"] for start in manifest.read_starts(folder)] == [1, 2, 3]
    told = json.loads((folder.report_dir / "summary.json").read_text())["time_s"]
    other = told.pop("other")
    assert told == pytest.approx({stage: seconds for stage, seconds in found.items() if stage != "wall"})
    assert other == pytest.approx(found["wall"] - sum(told.values()))

    before, (code, out, _) = manifest.read_starts(folder), run_main(*words, "rounds=3", "output.progress=plain")
    line = f"time: {time_line({**told, 'other': other})}"
    assert code == 0 and line in " ".join(out.split())  # nothing left to do: the same table
    assert [start.get("ended") for start in manifest.read_starts(folder)] == [*(s["ended"] for s in before), None]
