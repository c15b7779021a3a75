"""Mutated configs as a user starts them, on two ranks: a mistake is told once and ends both, with exit code 2."""

import pytest
from fast import fast
from launched import mpirun
from torture import fuzz_configs

CASES = 20
SEED = 5


@pytest.mark.parametrize("number", fast(0, of=range(CASES)))
def test_a_mutation_as_a_command(number: int) -> None:
    mpirun()
    outcome = fuzz_configs.command_outcome(number, SEED, ranks=2)
    assert outcome is not None and outcome.verdict in fuzz_configs.GOOD, outcome
