"""`jobs/bench.py factorize`: both solvers on the states of one run, and what its programs say of a mistake."""

from pathlib import Path
from subprocess import CalledProcessError

import pytest
from small_runs import small_setup

from fedmpi.config.load import load
from fedmpi.studies.bench import factorize
from fedmpi.studies.launch import refuse_failure

# 16, 32 and 64 channels: matrices with bases are 96 and 192 wide.
WORDS = ("method.name=fedhm", "model.width=0.25", "model.blocks=[1,1,1]", "method.rank_ratio=[1,0.5]")


def test_both_solvers_factorize_the_states_of_three_rounds(tmp_path: Path) -> None:
    """Each audit finds something that the next round must leave out of what it starts from."""
    setup = small_setup(tmp_path, *WORDS, *factorize.WORDS)
    result = factorize.measured(setup, 3)
    for number in (1, 2, 3):
        # Round 1 has the bases of the Gram matrix, whose factors are those of `gram` to the rounding of float32.
        assert result[f"excess@{number}"] < 1e-3 and result[f"by_gram@{number}"] == 0
        assert all(result[f"{name}_s@{number}"] >= 0 for name in ("gram", "auto", "audit"))
    assert len(factorize.shown(result)) == 4 and (result["warm"], result["layers"]) == (3, 4)


def test_a_mistake_in_the_started_program_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    """Only the started program makes the method, which has no net to factorize."""
    with pytest.raises(SystemExit) as ended:
        factorize.main(["factorize", "--case", "small-fedhm", "method.rank_ratio=[1]"])
    out, err = capfd.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 1) and err.startswith("method.")


def test_late_states_of_the_main_job() -> None:
    """All 34 rounds of what `python -m fedmpi.main` trains without a word."""
    asked = factorize._arguments(["factorize", "--case", "digits-fedhm", "--pairs", "34"])
    config, main_job = load(None, asked.runs["digits-fedhm"]), load(None, ["method.solver=auto"])
    assert asked.pairs == config.rounds == 34
    for section in ("data", "partition", "model", "method", "clients", "train"):
        assert getattr(config, section) == getattr(main_job, section)


def test_a_failure_that_is_no_mistake_is_raised() -> None:
    """Its traceback is for us; a mistake is said already, and nothing is raised for success."""
    refuse_failure(0, ["a"])
    with pytest.raises(CalledProcessError):
        refuse_failure(1, ["a"])
    with pytest.raises(SystemExit, match="2"):
        refuse_failure(2, ["a"])
