"""Runs killed as a whole and runs with a rank that is stopped for a while; `tests/torture/kill_ranks.py` makes more by hand."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from launched import mpirun
from torture.attacks import CASES, ROUNDS, WITH_MEMORY, Job, Kill, Kind, jobs, quiet, run

from fedmpi import registry

TWICE = Job(
    "lgfedavg-pretrained", 3, (Kill(0, 4, "saving", 0.002),), "job",
    resumed=((2, (Kill(1, 6, "local_training", 0.01),)), (1, ())),
)  # fmt: skip
STOPPED = Job("scaffold", 3, (Kill(2, 3, "local_training", 0.001, stop_s=5.0),), "stop")
GIVEN_UP = Job("standalone", 3, (Kill(0, 3, "aggregation", 0.0, stop_s=60.0),), "stop", timeout_s=6.0)


@pytest.mark.parametrize("job", [TWICE, STOPPED, GIVEN_UP], ids=["killed twice", "stopped", "stopped for too long"])
def test_the_run_comes_to_the_bytes_of_a_quiet_one(job: Job, tmp_path: Path) -> None:
    mpirun()
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
