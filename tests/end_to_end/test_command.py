"""The command as a user types it: the plan with the papers' sizes, and a run on real CIFAR-10."""

import json
from pathlib import Path

import pytest
from launched import RunMain, Start
from small_runs import finished

ROOT = Path(__file__).resolve().parents[2]


def test_the_plan_has_the_papers_sizes(run_main: RunMain, tmp_path: Path) -> None:
    """As overrides of the default config, whose own model is small; no data file is there to be read."""
    words = ("model.name=resnet18", "data.name=cifar10", f"data.root={tmp_path / 'nowhere'}")
    code, out, errors = run_main("plan", "--json", *words)
    assert (code, errors) == (0, "")
    tiers = json.loads(out)["tiers"]
    assert [tier["params"] for tier in tiers] == [11_173_962, 4_157_514, 2_209_866, 1_236_042]
    assert [tier["capacity"] for tier in tiers] == [1, 0.5, 0.25, 0.125]
    assert all({"name", "macs"} <= tier.keys() for tier in tiers)


@pytest.mark.nightly
def test_real_cifar10_under_mpirun(start: Start, cifar10_root: str, tmp_path: Path) -> None:
    """The paper's config at an eighth of its width; 500 clients of 100 images each, two of them, one round."""
    words = (
        f"{ROOT}/configs/papers/fedhm.yaml@cifar10_noniid/fedhm",
        f"data.root={cifar10_root}",
        "model.width=0.125",
        "rounds=1",
        "clients.count=500",
        "clients.per_round=2",
        "train.local_epochs=1",
        "output.progress=plain",
    )
    launched = start(3, *words, "--run-dir", str(tmp_path / "run"), small=False)
    assert launched.wait() == 0, launched.err
    assert "round 1/1" in launched.out and "capacity" in launched.out
    (record,) = finished(tmp_path / "run").records
    assert set(record["tiers"]) == {"1", "0.5", "0.25", "0.125"} and len(record["cohort"]) == 2
    # 10,000 images of ten equal classes: an untrained net is right for some, never for none.
    assert all(0 < score["accuracy"] < 1 for score in record["tiers"].values())
