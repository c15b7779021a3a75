"""Runs killed as a whole at any moment, that of saving included, or with a rank stopped for a while: all come to the
same bytes. `tests/torture/kill_ranks.py` makes more.
"""

from itertools import islice
from pathlib import Path

import pytest
from fast import fast
from launched import RunMain, Start, mpirun
from small_runs import SMALL, finished, undisturbed
from torture.kill_ranks import CASES, ROUNDS, WITH_MEMORY, Job, Kill, Kind, jobs, quiet, run

from fedmpi import registry
from fedmpi.report.records import read_records
from fedmpi.store.run_dir import RunDir

SAVING = Kill(0, 4, "saving", 0.002)
KILLED = {
    "killed": Job("lgfedavg-pretrained", 2, (SAVING,), "job", resumed=((1, ()),)),
    "killed twice": Job(
        "lgfedavg-pretrained", 3, (SAVING,), "job", resumed=((2, (Kill(1, 6, "local_training", 0.01),)), (1, ()))
    ),
    **{f"drawn {job.case}": job for job in islice(jobs(("fedavg", "fedhm", "hermes", "topk"), 3, 1, "job"), 4)},
    "stopped": Job("scaffold", 3, (Kill(2, 3, "local_training", 0.001, stop_s=5.0),), "stop"),
    "stopped for too long": Job("standalone", 3, (Kill(0, 3, "aggregation", 0.0, stop_s=60.0),), "stop", timeout_s=6.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLED)
def test_the_run_comes_to_the_bytes_of_a_quiet_one(name: str, tmp_path: Path) -> None:
    mpirun()
    job = KILLED[name]
    outcome = run(job, tmp_path, 0, quiet(job.case, tmp_path))
    log = (tmp_path / "job-0.log").read_text(errors="replace")
    assert not outcome.problem, f"{outcome.problem}\n{log}"
    expected = [] if job.timeout_s else [kill for _, kills in job.starts for kill in kills]  # a limit may end it before
    assert [kill for kill in expected if kill not in outcome.killed] == [], f"not all came to pass\n{log}"


def test_every_method_with_a_memory_has_a_case() -> None:
    kept = {name for name in registry.BUILT_IN["method"] if registry.made("method", name).traits.keeps_memory}
    attacked = {word.partition("=")[2] for case in WITH_MEMORY for word in CASES[case] if "method.name" in word}
    assert attacked == kept | {"topk"}  # which has one only with error feedback, and says so when it is made


@pytest.mark.parametrize("kind", ["ranks", "job", "stop"])
def test_attacks_are_drawn_by_the_seed(kind: Kind) -> None:
    drawn, again = (list(islice(jobs(list(CASES), 4, 3, kind), 40)) for _ in range(2))
    assert drawn == again != list(islice(jobs(list(CASES), 4, 4, kind), 40))
    assert {job.case for job in drawn} == set(CASES)
    for job in drawn:
        for ranks, kills in job.starts:
            assert len({kill.rank for kill in kills}) == len(kills) < max(ranks, 2)
            assert all(kill.rank < ranks and 1 <= kill.round <= ROUNDS for kill in kills)
            assert all((5 <= kill.stop_s <= 60) if kind == "stop" else kill.stop_s == 0 for kill in kills)


# Rank 0 ends itself by SIGKILL in the middle of saving round 5.
KILLED_WHILE_SAVING = """
from pathlib import Path
from fedmpi.disk import plain
class Os:
    def __getattr__(self, name):
        return getattr(os, name)
    def replace(self, source, target, **folders):
        is_it = Path(target).name == "round-000005.h5"
        if is_it and MOMENT == "half written":
            half = f"/proc/self/fd/{folders['src_dir_fd']}/{source}"
            os.truncate(half, os.path.getsize(half) // 2)
        if is_it and MOMENT != "renamed":
            die()
        os.replace(source, target, **folders)
        if is_it:
            die()
plain.os = Os()"""
UNEVEN = ("partition.name=class_dirichlet", "rounds=8", "evaluation.every=5", "output.progress=plain")
MOMENTS = (("fedavg", "half written", 2), ("fedhm", "written", 1), ("fedhm", "renamed", 2), ("topk", "renamed", 2))


@pytest.mark.parametrize(("method", "moment", "ranks"), fast(MOMENTS[1], of=MOMENTS))
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
