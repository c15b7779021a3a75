"""Runs killed as a whole at any moment, that of saving included, with a rank stopped for a while, or, under ULFM, with
lost ranks: all come to the same bits. `tests/nightly/kill.py` makes more.
"""

from pathlib import Path

import pytest
from fast import fast
from launched import RunMain, Start, mpirun
from nightly.kill import Attack, Leg, case, combinations, quiet, run
from small_runs import SMALL, finished, undisturbed

from fedmpi.report.records import read_records
from fedmpi.store.run_dir import RunDir

SAVING = Attack(0, 4, "saving", 0.002)
AT_ONCE = (Attack(1, 3, "local_training", 0.0), Attack(2, 3, "local_training", 0.0), Attack(0, 3, "aggregation", 0.0))
JOBS = {
    "killed": case("lgfedavg-pretrained", Leg(2, (SAVING,)), Leg(1), kills_all=True),
    "killed twice": case(
        "hermes", Leg(3, (SAVING,)), Leg(2, (Attack(1, 6, "local_training", 0.01),)), Leg(1), kills_all=True
    ),
    "stopped": case("scaffold", Leg(3, (Attack(2, 3, "local_training", 0.001, stop_s=5.0),))),
    "stopped for too long": case(
        "standalone", Leg(3, (Attack(0, 3, "aggregation", 0.0, stop_s=60.0),), ("mpi.round_timeout_s=6",))
    ),
    # All in all: workers and rank 0 are lost, in each stage, one after the other and at once, down to the last rank.
    "lost": case("fedhm", Leg(3, (Attack(2, 2, "local_training", 0.003), Attack(0, 4, "svd", 0.001)))),
    "lost with memories": case(
        "topk", Leg(4, (Attack(3, 2, "evaluation", 0.0), SAVING, Attack(1, 5, "local_training", 0.01)))
    ),
    "lost at once": case("hermes", Leg(5, (Attack(4, 1, "communication", 0.0), *AT_ONCE))),
    "lost at reduce": case(
        "fedavg-reduce",
        Leg(4, (Attack(3, 2, "aggregation", 0.0), Attack(0, 6, "evaluation", 0.0), Attack(2, 7, "communication", 0.0))),
    ),
}


@pytest.mark.parametrize("name", fast("lost", of=JOBS, slow=("killed twice", "lost at reduce")))
def test_the_run_comes_to_the_bits_of_a_quiet_one(name: str, tmp_path: Path) -> None:
    """Each loss is on record; where ranks are lost the others continue."""
    mpirun()
    job = JOBS[name]
    outcome = run(job, tmp_path, 0, quiet(job, tmp_path))
    log = (tmp_path / "job-0.log").read_text(errors="replace")
    assert not outcome.problem, f"{outcome.problem}\n{log}"
    expected = [attack for one in job.starts for attack in one.attacks]
    assert name == "stopped for too long" or outcome.attacks == expected, f"not all came to pass\n{log}"
    if name.startswith("lost"):
        assert {loss["rank"] for loss in outcome.losses} == {attack.rank for attack in expected}, log
        assert all(loss["recovery_s"] > 0 and loss["host"] for loss in outcome.losses)


@pytest.mark.slow
def test_a_random_combination_comes_to_the_bits_of_a_quiet_one(tmp_path: Path) -> None:
    mpirun()
    job = next(combinations(tmp_path / "data", 5, seed=11))
    expected = quiet(job, tmp_path)
    assert expected is not None, job
    assert run(job, tmp_path, 0, expected).problem == "", job


# Rank 0 ends itself by SIGKILL in the middle of saving round 5.
KILLED_WHILE_SAVING = """
from pathlib import Path
from fedmpi.store import files
class Os:
    def __getattr__(self, name):
        return getattr(os, name)
    def replace(self, source, target):
        is_it = Path(target).name == "round-000005.h5"
        if is_it and MOMENT == "half written":
            os.truncate(source, os.path.getsize(source) // 2)
        if is_it and MOMENT != "renamed":
            die()
        os.replace(source, target)
        if is_it:
            die()
files.os = Os()"""
UNEVEN = ("partition.name=class_dirichlet", "rounds=8", "evaluation.every=5", "output.progress=plain")
MOMENTS = (("fedavg", "half written", 2), ("fedhm", "written", 1), ("fedhm", "renamed", 2), ("topk", "renamed", 2))


@pytest.mark.parametrize(("method", "moment", "ranks"), fast(MOMENTS[1], of=MOMENTS, slow=MOMENTS[3:]))
def test_kills_while_saving(
    start: Start, run_main: RunMain, tmp_path: Path, method: str, moment: str, ranks: int
) -> None:
    """Killed with half of a temporary file, with a whole one, and between the rename and what follows it."""
    run_dir, words = tmp_path / "run", (f"method.name={method}", *UNEVEN)
    first = start(ranks, *words, run_dir=run_dir, patch=KILLED_WHILE_SAVING.replace("MOMENT", repr(moment)))
    assert first.wait() != 0 and len(read_records(RunDir(run_dir))) == 5, first.err
    code, out, errors = run_main(*SMALL, *words, "--run-dir", str(run_dir), "--resume")
    assert code == 0 and f"resuming after round {5 if moment == 'renamed' else 4}" in out, errors
    assert not list(run_dir.rglob("*.tmp")), "a temporary file was left"
    assert finished(run_dir) == undisturbed(tmp_path, *words)
