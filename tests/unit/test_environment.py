"""Environment variables are input like any other: whatever they hold, a command ends with an answer."""

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest

from fedmpi.mpi.launch import whole_number

PACKAGE = Path(__file__).parents[2] / "fedmpi"
VARIABLE = re.compile(r"(CUBLAS|MV2|OMPI|PALS|PMI|PMIX|SLURM|FEDMPI)_\w+|TERM")

# Every environment variable that the package reads; a test keeps the list whole.
ENVIRONMENT = (
    *("CUBLAS_WORKSPACE_CONFIG", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_MCA_btl", "OMPI_MCA_btl_sm_backing_directory"),
    *("OMPI_MCA_mpi_ft_enable", "PALS_RANKID", "PALS_SIZE", "PMIX_RANK", "PMI_RANK"),
    *("PMI_SIZE", "OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"),
    "OMPI_MCA_rmaps_base_oversubscribe",
    *("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_JOB_END_TIME", "SLURM_JOB_ID", "SLURM_PROCID"),
    *("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "TERM"),
)


def test_whole_numbers() -> None:
    for text, number in (("0", 0), ("007", 7), ("9" * 18, 10**18 - 1)):
        assert whole_number({"A": text}, "A") == number
    for text in ("", " 1", "1 ", "+1", "-1", "1_0", "1.0", "\u00b2", "\u0661", "9" * 19, "9" * 5_000):
        assert whole_number({"A": text}, "A") is None, text
    assert whole_number({}, "A") is None


def test_every_variable_is_tried() -> None:
    paths = [path for path in PACKAGE.rglob("*.py") if PACKAGE / "studies" not in path.parents]  # which set variables
    trees = [ast.parse(path.read_text()) for path in paths]
    texts = {node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert {text for text in texts if isinstance(text, str) and VARIABLE.fullmatch(text)} == set(ENVIRONMENT)


@pytest.mark.parametrize(
    ("value", "code"), [("3", 0), ("", 0), ("x", 2), ("0", 2), ("-1", 2), ("9" * 99, 2), ("1 2", 2)]
)
def test_numbers_that_the_scripts_read(value: str, code: int) -> None:
    function = "source <(sed -n '/^mistake()/,/^}/p' jobs/setup.sh)"
    script = f"{function}; set -e; ranks=$(whole_number FEDMPI_RANKS 5); echo $ranks"
    environment = {**os.environ, "FEDMPI_RANKS": value}
    done = subprocess.run(["bash", "-c", script], env=environment, cwd=PACKAGE.parent, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, "" if code else f"{value or 5}\n")
    assert done.stderr.count("\n") == (code == 2)
