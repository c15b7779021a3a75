"""Runs with a user's own code and data: what the manifest notes, what a resume asks for, and the same bits."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launched import RunMain, last_start, rejoined
from own_data import arrays_of, save_npz
from small_runs import finished

from fedmpi.data import own

SOURCE = Path(__file__).resolve().parents[1] / "own_data.py"
SMALL = """
    model.name=mlp method.name=fedavg clients.count=4 clients.per_round=2 train.local_epochs=1
    output.progress=plain output.tensorboard=false output.report=false
""".split()
OWN = ("data.name=mysets:blobs", "partition.name=mysets:rows")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module `mysets` of the user's."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "mysets.py").write_text(SOURCE.read_text())
    monkeypatch.syspath_prepend(str(folder))
    forget()
    yield folder / "mysets.py"
    sys.path.remove(str(folder))
    forget()


def forget() -> None:
    """As a new process knows nothing of the module."""
    sys.modules.pop("mysets", None)
    importlib.invalidate_caches()


def test_a_resume_asks_for_the_user_s_names_and_keeps_their_options(
    run_main: RunMain, tmp_path: Path, mine: Path
) -> None:
    run, whole = str(tmp_path / "run"), tmp_path / "whole"
    code, out, errors = run_main(*SMALL, *OWN, "data.num=90", "rounds=1", "--run-dir", run)
    assert code == 0 and f"{' '.join(OWN)} --run-dir {run} --resume" in out, errors
    entry = last_start(Path(run))["brought"]
    assert entry["data"]["file"] == str(mine) and len(entry["data"]["digest"]) == 32
    assert entry["partition"]["name"] == "mysets:rows"
    forget()
    code, _, errors = run_main("rounds=2", "--run-dir", run, "--resume")
    assert code == 2 and len(errors.splitlines()) == 1 and errors.rstrip().endswith(" ".join(OWN))
    assert "mysets" not in sys.modules
    code, _, errors = run_main("rounds=2", *OWN, "--run-dir", run, "--resume")
    assert code == 0 and "has changed" not in errors, errors
    assert run_main(*SMALL, *OWN, "data.num=90", "rounds=2", "--run-dir", str(whole))[0] == 0
    assert finished(Path(run)) == finished(whole)
    mine.write_text(mine.read_text() + "# another line\n")
    forget()
    code, out, errors = run_main("rounds=3", *OWN, "--run-dir", run, "--resume")
    told = [line for line in (out + errors).splitlines() if "has changed since the last start" in line]
    assert code == 0 and len(told) == 1 and "data mysets:blobs" in told[0] and "partition mysets:rows" in told[0]


def test_a_file_of_the_user_s_is_planned_run_and_resumed(
    run_main: RunMain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_npz(tmp_path, **arrays_of("pictures"))
    words = (*SMALL, "data.name=npz", f"data.path={path}", "partition.name=iid")
    code, out, _ = run_main("plan", *words)
    assert code == 0 and f"data.path={path} was read, " in " ".join(out.split())
    run = str(tmp_path / "run")
    assert run_main(*words, "rounds=1", "--run-dir", run)[0] == 0
    assert not last_start(Path(run))["brought"]
    (tmp_path / "moved").mkdir()
    moved = path.rename(tmp_path / "moved" / "mine.npz")
    own.forget()  # as a new process has read nothing
    code, _, errors = run_main("rounds=2", "--run-dir", run, "--resume")
    assert code == 2 and str(path) in errors and "o such file" in errors
    assert run_main("rounds=2", f"data.path={moved}", "--run-dir", run, "--resume")[0] == 0
    assert run_main(*words[:-2], f"data.path={moved}", words[-1], "rounds=2", "--run-dir", str(tmp_path / "b"))[0] == 0
    assert finished(Path(run)) == finished(tmp_path / "b")
    other = arrays_of("pictures")
    other["train_x"] = 255 - other["train_x"]
    elsewhere = save_npz(tmp_path / "other", **other)
    code, _, errors = run_main("rounds=3", f"data.path={elsewhere}", "--run-dir", run, "--resume")
    assert code == 2 and f"data.path={elsewhere}: holds other data" in errors
    digest = last_start(Path(run))["data_digest"]
    assert f"was computed with (digest {digest[:12]})" in rejoined(errors)
    assert finished(Path(run)) == finished(tmp_path / "b")
