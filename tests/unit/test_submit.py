"""`jobs/submit.py`: the sbatch file of a run and of a sweep, and what it leaves out."""

import subprocess
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from golden_file import Told
from small_runs import run_all, small_config
from studied_runs import Called, calling, config_file, without_squeue

from fedmpi.config.load import load
from fedmpi.errors import ConfigError
from fedmpi.mpi.serial import SerialComm
from fedmpi.studies.slurm import job_file, submit
from fedmpi.studies.slurm.job_file import Order

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("no_squeue")
called, config, no_squeue = calling(submit.main), config_file, without_squeue


def order(name: str, *command: str, folder: str, ranks: int, launcher: str | None = None, **given: Any) -> Order:
    said = {"array_max": None, "sbatch_option": [], **given}
    words = ["python", "jobs/submit.py", *command]
    return Order(name, words, Path(folder), Namespace(ranks=ranks, launcher=launcher, **said))


def sweep() -> str:
    options = ["time=01:00:00", "gres=gpu:4", "exclusive"]
    given = {"folder": "/r/my grid", "ranks": 5, "array_max": 2, "sbatch_option": options}
    return job_file.sbatch(
        order("grid", "a.yaml", "--sweep", "seed=0,1,2", **given), RUNS, [1, 3], Path("/home/me/fed mpi")
    )


RUNS = [[f"/r/my grid/a-seed{seed}/submitted.yaml", "--run-dir", f"/r/my grid/a-seed{seed}"] for seed in range(3)]


def test_ranges() -> None:
    assert job_file.ranges([7, 1, 2, 3, 9]) == "1-3,7,9" and job_file.ranges([4]) == "4"


def test_a_task_s_words_survive_the_shell() -> None:
    """bash, run on the file as a task of the array, passes on exactly the words of its run."""
    text = sweep()
    case = text[text.index("case ") : text.index("esac") + 4]
    for number, run in enumerate(RUNS, 1):
        command = ["bash", "-c", f'{case}\nprintf "%s\\n" "${{run[@]}}"']
        done = subprocess.run(command, env={"SLURM_ARRAY_TASK_ID": str(number)}, capture_output=True, text=True)
        assert done.stdout.splitlines() == run, done.stderr


SCRIPTS = [*ROOT.glob("slurm/*.s*")]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_bash_understands_the_files(path: Path) -> None:
    assert subprocess.run(["bash", "-n", str(path)], capture_output=True).returncode == 0


def test_a_grid(config: Path, tmp_path: Path, called: Called) -> None:
    """Every combination has a folder of its own; commas in brackets part nothing; a finished run is left out."""
    words = [config, "rounds=1", "--sweep", "seed=0,1", "--sweep", "model.blocks=[1,1],[1]"]
    code, out, _ = called(*words, "--array-max", "2")
    folder = tmp_path / "runs" / "mine"
    assert code == 0 and "4 of 4 runs are" in out and " with --submit" in out
    text = (folder / "job.sbatch").read_text()
    assert "#SBATCH --array=1-4%2\n" in text and text.count("--run-dir") == 4
    run = folder / "mine-seed1-blocks1_1"
    (written,) = run.iterdir()
    assert f"3) run=({written} --run-dir {run}) ;;\n" in text
    asked = load(str(config), ("rounds=1", "seed=1", "model.blocks=[1,1]"))
    assert load(written, ()).to_dict() == asked.to_dict() and len(list(folder.iterdir())) == 5
    run_all(small_config("method.name=fedavg", "rounds=1", "seed=1"), SerialComm(), folder / "mine-seed1-blocks1_1")
    assert called(*words)[0] == 0
    assert "#SBATCH --array=1-2,4\n" in (folder / "job.sbatch").read_text()


def test_long_values_make_short_names(config: Path, tmp_path: Path, called: Called) -> None:
    """Different ones for different values, and the same ones again."""
    values = [f"[{','.join(map(str, range(1, last)))}]" for last in (99, 100)]
    words = [config, "--sweep", f"train.schedule.milestones={','.join(values)}"]
    folders = set()
    for _ in range(2):
        assert called(*words)[0] == 0
        folders |= {path.name for path in (tmp_path / "runs" / "mine").iterdir() if path.is_dir()}
    assert len(folders) == 2 and all(name.startswith("mine-milestones1_2_3") and len(name) <= 160 for name in folders)


def test_options_for_sbatch(config: Path, tmp_path: Path, called: Called) -> None:
    """Ours can be overridden, `--` may stay, a value is quoted as sbatch reads it; of an option the last counts."""
    given = ["--time=01:00:00", "time=02:00:00", "exclusive", "no-requeue", "signal=B:USR1@300", 'comment=it\'s "so"']
    words = [f"--sbatch-option={option}" for option in given]
    assert called(config, *words, "--out", tmp_path / "100%")[0] == 0
    lines = (tmp_path / "100%" / "mine" / "job.sbatch").read_text().splitlines()
    said = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")]
    assert said[:4] == ["job-name=mine", "ntasks=5", "cpus-per-task=1", "time=02:00:00"]
    output = f"output={tmp_path}/100%%/mine/slurm-%j.log"
    assert said[4:8] == ["signal=B:USR1@300", "open-mode=append", output, "exclusive"]
    assert said[8:] == ["no-requeue", 'comment="it\'s \\"so\\""']


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("3", 180), ("2:30", 150), ("1:00:30", 3630), ("1-2", 93600), ("1-2:03", 93780), ("1-2:03:04", 93784)],
)
def test_a_time_must_outlast_the_signal(time: str, seconds: int, told: Told) -> None:
    """In each of Slurm's forms; what it calls unlimited does."""
    job_file.check_time([f"time={time}", f"signal=B:USR1@{seconds - 1}"])
    with told.by(ConfigError):
        job_file.check_time([f"time={time}", f"signal=B:USR1@{seconds}"])
    job_file.check_time(["time=UNLIMITED"])
    job_file.check_time(["time=0"])
