"""Runs killed as a whole at any moment, that of saving included, or with a rank stopped for a while: all come to the
same bits. `tests/nightly/kill.py` makes more.
"""

from pathlib import Path

import pytest
from fast import fast
from launched import mpirun
from nightly.kill import Attack, Leg, case, combinations, quiet, run

SAVING = Attack(0, 4, "saving", 0.002)
KILLED = {
    "killed": case("lgfedavg-pretrained", Leg(2, (SAVING,)), Leg(1), kills_all=True),
    "killed twice": case(
        "hermes", Leg(3, (SAVING,)), Leg(2, (Attack(1, 6, "local_training", 0.01),)), Leg(1), kills_all=True
    ),
    "stopped": case("scaffold", Leg(3, (Attack(2, 3, "local_training", 0.001, stop_s=5.0),))),
    "stopped for too long": case(
        "standalone", Leg(3, (Attack(0, 3, "aggregation", 0.0, stop_s=60.0),), ("mpi.round_timeout_s=6",))
    ),
}


@pytest.mark.parametrize("name", fast(of=KILLED, slow=("killed twice",)))
def test_the_run_comes_to_the_bits_of_a_quiet_one(name: str, tmp_path: Path) -> None:
    mpirun()
    job = KILLED[name]
    outcome = run(job, tmp_path, 0, quiet(job, tmp_path))
    log = (tmp_path / "job-0.log").read_text(errors="replace")
    assert not outcome.problem, f"{outcome.problem}\n{log}"
    expected = [attack for one in job.starts for attack in one.attacks]
    assert name == "stopped for too long" or outcome.attacks == expected, f"not all came to pass\n{log}"


@pytest.mark.slow
def test_a_random_combination_comes_to_the_bits_of_a_quiet_one(tmp_path: Path) -> None:
    mpirun()
    job = next(combinations(tmp_path / "data", 5, seed=11))
    expected = quiet(job, tmp_path)
    assert expected is not None, job
    assert run(job, tmp_path, 0, expected).problem == "", job
