"""Jobs on a real Slurm: to the end, on two nodes, through a requeue, as an array, with the user's own code."""

import contextlib
import os
import re
import signal
from pathlib import Path

import psutil
import pytest
from slurm_cluster import ROOT, Cluster
from small_runs import SMALL, Finished, finished, run_all

from fedmpi.config.load import load
from fedmpi.mpi.communicator import SerialComm
from fedmpi.report.records import read_records
from fedmpi.results.launch import Job, write_slurm_job
from fedmpi.store.manifest import read_starts
from fedmpi.store.run_dir import RunDir

SHORT = (*(word for word in SMALL if not word.startswith("output.progress")), "output.progress=plain")
TOPK = (*SHORT, "method.name=topk")  # clients have a memory
FILE = "slurm/job.sbatch"
RUN = "runs/fedhm-seed0"
NO_CONFIG = {r"1\) run=\(.*?\)": "1) run=()"}
"""As a user edits the file: the words after its name say all."""
FIVE = ("--ntasks=5", "--gres=gpu:4")
ENDLESS = 100_000
LONG = (*(word for word in SHORT if not word.startswith("rounds=")), "output.checkpoint_every=1000")
"""A config says how many rounds; and no checkpoint comes before the last one by itself."""


def undisturbed(folder: Path, *overrides: str, config: str | None = None) -> Finished:
    """The result of a config in one go, in this process."""
    run_all(load(config and str(ROOT / config), overrides), SerialComm(), folder)
    return finished(folder)


def must_end_well(cluster: Cluster, job: str) -> None:
    """Waits for it."""
    for state in cluster.wait_until_left(job):
        assert (state["JobState"], state["ExitCode"]) == ("COMPLETED", "0:0"), f"{state}\n{cluster.log()}"


def config_of(cluster: Cluster, rounds: int) -> str:
    """Its path; a job reads it at each start."""
    path = cluster.project / "rounds.yaml"
    path.write_text(f"rounds: {rounds}\n")
    return str(path)


def state_of(cluster: Cluster, job: str) -> tuple[str, str]:
    """And how often it was requeued."""
    (found,) = cluster.jobs(job)
    return found["JobState"], found["Restarts"]


def goes_back(cluster: Cluster, job: str, run_dir: RunDir) -> int:
    """Signalled in the middle, put back into the queue, and started again with few rounds left; how many in all."""
    cluster.control("scancel", "--signal=USR1", "--batch", job)
    cluster.wait_until(lambda: state_of(cluster, job) == ("PENDING", "1"))
    rounds = len(finished(run_dir.path).records) + 5
    assert (run_dir.path / "requeued").read_text() == f"{job} 0\n"
    config_of(cluster, rounds)
    cluster.start_again(job)
    return rounds


def test_a_run_finishes(cluster: Cluster, tmp_path: Path) -> None:
    """Five ranks on one node. Another job's end, and what a user has set for squeue, do not end it early."""
    options = [*FIVE, "--export=ALL,SLURM_JOB_END_TIME=5,SQUEUE_STATES=PD,FEDMPI_REQUEUE=no"]
    job = cluster.submit(FILE, *TOPK, edits=NO_CONFIG, options=options)
    must_end_well(cluster, job)
    assert finished(cluster.project / RUN) == undisturbed(tmp_path, *TOPK)
    log = (cluster.project / f"fedmpi-{job}.log").read_text()
    assert len(re.findall(r"^rank \d: ", log, re.MULTILINE)) == 5, log


@pytest.mark.slow
def test_a_written_array_has_the_user_s_code(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method in the user's folder, where `fedmpi grid --slurm` is called; two runs, as one process makes them."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    user = cluster.folder / "my folder"
    user.mkdir()
    (user / "mine.py").write_text("from fedmpi.methods.fedavg import FedAvg\n\nclass Mine(FedAvg):\n    pass\n")
    monkeypatch.chdir(user)
    monkeypatch.syspath_prepend(user)
    words = (*SHORT, "method={name: mine:Mine}")
    configs = [load(ROOT / "configs/fedhm_digits.yaml", [*words, f"seed={n}"]) for n in (0, 1)]
    jobs = [Job(RunDir(user / f"run-{n}"), config) for n, config in enumerate(configs)]
    write_slurm_job(jobs, user / "job", ranks=3, launcher=None, options=["time=10"])
    must_end_well(cluster, cluster.control("sbatch", "--parsable", f"{user}/job/job.sbatch").strip())
    run_all(jobs[1].config, SerialComm(), tmp_path / "alone")
    assert finished(jobs[1].folder.path) == finished(tmp_path / "alone")
    assert all(job.run().is_finished for job in jobs)


@pytest.mark.nightly
def test_two_nodes(cluster: Cluster, tmp_path: Path) -> None:
    """Rank 0 and four workers on the first, four on the second: each worker is one of four on its node."""
    options = ("--nodes=2", "--ntasks=9", "--ntasks-per-node=5", "--distribution=block", "--gres=gpu:4")
    job = cluster.submit(FILE, *TOPK, edits=NO_CONFIG, options=options)
    must_end_well(cluster, job)
    assert finished(cluster.project / RUN) == undisturbed(tmp_path, *TOPK)
    script = "import os; print('on', os.environ['SLURMD_NODENAME'], os.environ['OMPI_COMM_WORLD_RANK'])"
    edits = {r'^  "\$python" -m fedmpi\.main .*\n': f'  "$python" -c "{script}" || true\n'}
    job = cluster.submit(FILE, edits=edits, options=options)
    cluster.wait_until_left(job)
    log = (cluster.project / f"fedmpi-{job}.log").read_text()
    places = {int(rank): node for node, rank in re.findall(r"^on (\S+) (\d)$", log, re.MULTILINE)}
    assert places == {rank: cluster.host + "2" * (rank >= 5) for rank in range(9)}, log


@pytest.mark.slow
def test_a_signalled_run_goes_on_after_its_requeue(cluster: Cluster, tmp_path: Path) -> None:
    """To the bits of one that was left alone. Under ULFM a worker dies and the others continue; then comes the signal;
    requeued, all ranks are there again."""
    config, words = config_of(cluster, ENDLESS), (*LONG, "method.name=topk", "evaluation.every=5")
    edits = {**NO_CONFIG, r"^start=\(mpirun": "start=(mpirun --with-ft ulfm"}
    job = cluster.submit(FILE, config, *words, edits=edits, options=FIVE)
    run_dir = RunDir(cluster.project / RUN)
    cluster.wait_until(lambda: len(read_records(run_dir)) >= 2)
    os.kill(rank_of_job(job, 2), signal.SIGKILL)
    cluster.wait_until(lambda: any("losses" in record for record in read_records(run_dir)))
    goes_back(cluster, job, run_dir)
    must_end_well(cluster, job)
    assert not (run_dir.path / "requeued").exists()
    first, second = read_starts(run_dir)
    assert first["stopped"]["why"] == "SIGUSR1" and second["resumed_round"] == first["stopped"]["round"]
    assert [loss["rank"] for loss in first["losses"]] == [2] and "losses" not in second
    assert len(second["ranks"]) == len(first["ranks"])
    assert finished(run_dir.path) == undisturbed(tmp_path, *words, config=config)


def rank_of_job(job: str, rank: int) -> int:
    """The process number of a rank."""
    wanted = {("SLURM_JOB_ID", job), ("OMPI_COMM_WORLD_RANK", str(rank))}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if wanted <= process.environ().items():
                return process.pid
    raise AssertionError(f"job {job} has no rank {rank}")


@pytest.mark.nightly
def test_a_task_goes_back_into_the_queue_alone(cluster: Cluster) -> None:
    """Of the task that has the array's own number: its requeue leaves the other one running."""
    edits = {r"configs/fedhm_digits\.yaml": config_of(cluster, ENDLESS)}
    job = cluster.submit(FILE, *LONG, "evaluation.every=20", edits=edits, options=("--array=1-2", "--ntasks=3"))
    runs = {task: RunDir(cluster.project / "runs" / f"fedhm-seed{task - 1}") for task in (1, 2)}
    cluster.wait_until(lambda: all(len(read_records(run)) >= 2 for run in runs.values()))
    (namesake,) = (int(task["ArrayTaskId"]) for task in cluster.jobs(job) if task["JobId"] == job)
    rounds, other = goes_back(cluster, f"{job}_{namesake}", runs[namesake]), runs[3 - namesake]
    assert state_of(cluster, f"{job}_{3 - namesake}") == ("RUNNING", "0"), cluster.log()
    done = len(read_records(other))
    cluster.wait_until(lambda: len(read_records(other)) > done)
    cluster.control("scancel", f"{job}_{3 - namesake}")
    must_end_well(cluster, f"{job}_{namesake}")
    assert len(finished(runs[namesake].path).records) == rounds
    assert len(read_starts(runs[namesake])) == 2 and len(read_starts(other)) == 1


@pytest.mark.nightly
def test_with_srun(cluster: Cluster, tmp_path: Path) -> None:
    """The alternative that the file names."""
    if "pmix" not in cluster.control("srun", "--mpi=list"):
        pytest.skip("this Slurm has no PMIx (libpmix-dev must be there before it starts)")
    edits = {**NO_CONFIG, r"^start=\(mpirun .*\)": "start=(srun --mpi=pmix)"}
    job = cluster.submit(FILE, *TOPK, edits=edits, options=["--ntasks=3", f"--nodelist={cluster.host}"])
    must_end_well(cluster, job)
    assert finished(cluster.project / RUN) == undisturbed(tmp_path, *TOPK)
