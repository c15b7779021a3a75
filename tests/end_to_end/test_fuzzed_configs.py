"""Mutated configs as a user starts them, on two ranks: a mistake is told once and ends both, with exit code 2."""

import json
from pathlib import Path

import pytest
from fast import fast
from launched import Start
from torture import config_mutations, fuzz_configs

CASES = 20
SEED = 5


@pytest.mark.parametrize("number", fast(*range(2), of=range(CASES)))
def test_a_mutation_as_a_command(start: Start, tmp_path: Path, number: int) -> None:
    """What is to be refused runs without --plan: the answer comes before MPI starts."""
    mutation = config_mutations.mutate(number, SEED, fuzz_configs.is_small)
    words = mutation.write(tmp_path / "case")
    expected, told = fuzz_configs.judge(["--plan=json", *words])
    launched = start(2, *([] if expected == "refused" else ["--plan=json"]), *words, small=False)
    code = launched.wait()
    if expected == "refused":
        assert code == 2 and launched.out == "", launched.err
        assert launched.err.count(told) == 1 and "Traceback" not in launched.err
    else:
        assert code == 0, launched.err
        assert fuzz_configs.wrong_with_plan(launched.out) == "" and json.loads(launched.out)["ranks"] == 2
