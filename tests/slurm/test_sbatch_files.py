"""The project's own sbatch files on a real Slurm: to the end, on two nodes, through a requeue, as an array."""

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm_cluster import LIMIT_S, ROOT, Cluster
from small_runs import SMALL, Finished, finished, run_all

from fedmpi.config.load import load
from fedmpi.mpi.serial import SerialComm
from fedmpi.report.records import read_records
from fedmpi.store.manifest import read_starts
from fedmpi.store.run_dir import RunDir

SHORT = (*(word for word in SMALL if not word.startswith("output.progress")), "output.progress=plain")
TOPK = (*SHORT, "method.name=topk")  # clients have a memory
NO_CONFIG = {r"^config=\(.*": "config=()"}
"""As a user edits them: the words after the file's name say all."""
ENDLESS = 100_000
LONG = (*(word for word in SHORT if not word.startswith("rounds=")), "output.checkpoint_every=1000")
"""A config says how many rounds; and no checkpoint comes before the last one by itself."""


def undisturbed(folder: Path, *overrides: str, config: str | None = None) -> Finished:
    """What a config comes to in one go, in this process."""
    run_all(load(config and str(ROOT / config), overrides), SerialComm(), folder)
    return finished(folder)


def must_end_well(cluster: Cluster, job: str) -> None:
    """Waits for it."""
    for state in cluster.wait_until_left(job):
        assert (state["JobState"], state["ExitCode"]) == ("COMPLETED", "0:0"), f"{state}\n{cluster.log()}"


def wait_for(is_so: Callable[[], bool], cluster: Cluster) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline, cluster.log()
        time.sleep(0.01)


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
    wait_for(lambda: state_of(cluster, job) == ("PENDING", "1"), cluster)
    rounds = len(finished(run_dir.path).records) + 5
    assert run_dir.requeued_path.read_text() == f"{job} 0\n"
    config_of(cluster, rounds)
    cluster.start_again(job)
    return rounds


def test_a_run_finishes(cluster: Cluster, tmp_path: Path) -> None:
    """Five ranks on one node. Another job's end, and what a user has set for squeue, do not end it early."""
    options = ["--export=ALL,SLURM_JOB_END_TIME=5,SQUEUE_STATES=PD,FEDMPI_REQUEUE=no"]
    job = cluster.submit("slurm/one_node_4gpu.sbatch", *TOPK, edits=NO_CONFIG, options=options)
    must_end_well(cluster, job)
    assert finished(cluster.project / "runs" / f"fedmpi-4gpu-{job}") == undisturbed(tmp_path, *TOPK)
    log = (cluster.project / f"fedmpi-4gpu-{job}.log").read_text()
    assert len(re.findall(r"^rank \d: ", log, re.MULTILINE)) == 5, log


@pytest.mark.slow
def test_two_nodes(cluster: Cluster, tmp_path: Path) -> None:
    """Rank 0 and four workers on the first, four on the second: each worker is one of four on its node."""
    job = cluster.submit("slurm/several_nodes.sbatch", *TOPK, edits=NO_CONFIG)
    must_end_well(cluster, job)
    assert finished(cluster.project / "runs" / f"fedmpi-nodes-{job}") == undisturbed(tmp_path, *TOPK)
    script = "import os; print('on', os.environ['SLURMD_NODENAME'], os.environ['OMPI_COMM_WORLD_RANK'])"
    edits = {r"^(resumable mpirun .*)python -m fedmpi\.main .*\n.*": rf'\1python -c "{script}"'}
    job = cluster.submit("slurm/several_nodes.sbatch", edits=edits)
    must_end_well(cluster, job)
    log = (cluster.project / f"fedmpi-nodes-{job}.log").read_text()
    places = {int(rank): node for node, rank in re.findall(r"^on (\S+) (\d)$", log, re.MULTILINE)}
    assert places == {rank: cluster.host + "2" * (rank >= 5) for rank in range(9)}, log


@pytest.mark.slow
def test_a_signalled_run_goes_on_after_its_requeue(cluster: Cluster, tmp_path: Path) -> None:
    """To the bits of one that was left alone."""
    config, words = config_of(cluster, ENDLESS), (*LONG, "method.name=topk", "evaluation.every=5")
    job = cluster.submit("slurm/long_resumable.sbatch", config, *words, edits=NO_CONFIG)
    run_dir = RunDir(cluster.project / "runs" / "fedmpi-long")
    wait_for(lambda: len(read_records(run_dir)) >= 2, cluster)
    goes_back(cluster, job, run_dir)
    must_end_well(cluster, job)
    assert not run_dir.requeued_path.exists()
    first, second = read_starts(run_dir)
    assert first["stopped"]["why"] == "SIGUSR1" and second["resumed_round"] == first["stopped"]["round"]
    assert finished(run_dir.path) == undisturbed(tmp_path, *words, config=config)
    log = (cluster.project / f"fedmpi-long-{job}.log").read_text()
    assert f"requeued: job {job} continues" in log and "stopped by" not in log, log


@pytest.mark.slow
def test_a_job_that_lost_a_rank_is_requeued_all_the_same(cluster: Cluster, tmp_path: Path) -> None:
    """Under ULFM: a worker dies and the others continue; then the signal; requeued, all ranks are there again."""
    config, words = config_of(cluster, ENDLESS), (*LONG, "method.name=topk", "evaluation.every=5")
    edits = {**NO_CONFIG, r"^resumable mpirun ": "resumable mpirun --with-ft ulfm "}
    job = cluster.submit("slurm/long_resumable.sbatch", config, *words, edits=edits, options=["--job-name=lost"])
    run_dir = RunDir(cluster.project / "runs" / "lost")
    wait_for(lambda: len(read_records(run_dir)) >= 2, cluster)
    os.kill(rank_of_job(job, 2), signal.SIGKILL)
    wait_for(lambda: any("losses" in record for record in read_records(run_dir)), cluster)
    goes_back(cluster, job, run_dir)
    must_end_well(cluster, job)
    first, second = read_starts(run_dir)
    assert [loss["rank"] for loss in first["losses"]] == [2] and first["stopped"]["why"] == "SIGUSR1"
    assert len(second["ranks"]) == len(first["ranks"]) and "losses" not in second
    assert finished(run_dir.path) == undisturbed(tmp_path, *words, config=config)


def rank_of_job(job: str, rank: int) -> int:
    """The process number of a rank."""
    wanted = {f"SLURM_JOB_ID={job}".encode(), f"OMPI_COMM_WORLD_RANK={rank}".encode()}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                return int(entry.name)
    raise AssertionError(f"job {job} has no rank {rank}")


@pytest.mark.slow
def test_without_requeueing_it_ends_with_75(cluster: Cluster) -> None:
    """The time is over after the first round; submitted again, it continues."""
    options = ("--job-name=again", "--export=ALL,FEDMPI_REQUEUE=no")
    for number in (1, 2):
        words = (*TOPK, "rounds=3", "mpi.time_limit_s=0.001")
        job = cluster.submit("slurm/long_resumable.sbatch", *words, edits=NO_CONFIG, options=options)
        (state,) = cluster.wait_until_left(job)
        assert (state["JobState"], state["ExitCode"]) == ("FAILED", "75:0"), cluster.log()
        assert len(finished(cluster.project / "runs" / "again").records) == number


@pytest.mark.slow
def test_an_array_makes_all_its_runs(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit("slurm/sweep_array.sbatch", *SHORT, "rounds=2")
    must_end_well(cluster, job)
    runs = [cluster.project / "runs" / "fedmpi-sweep" / str(number) for number in range(4)]
    assert [len(finished(run).records) for run in runs] == [2, 2, 2, 2]
    expected = undisturbed(tmp_path, "seed=1", *SHORT, "rounds=2", config="configs/heterofl_digits.yaml")
    assert finished(runs[3]) == expected != finished(runs[2])


@pytest.mark.slow
def test_a_task_goes_back_into_the_queue_alone(cluster: Cluster) -> None:
    """Of the task that has the array's own number: its requeue leaves the other one running."""
    words, options = (*LONG, "evaluation.every=20"), ("--array=0-1", "--job-name=alone")
    edits = {r"configs/fedhm_digits\.yaml": config_of(cluster, ENDLESS)}
    job = cluster.submit("slurm/sweep_array.sbatch", *words, edits=edits, options=options)
    runs = [RunDir(cluster.project / "runs" / "alone" / str(task)) for task in range(2)]
    wait_for(lambda: all(len(read_records(run)) >= 2 for run in runs), cluster)
    (namesake,) = (int(task["ArrayTaskId"]) for task in cluster.jobs(job) if task["JobId"] == job)
    rounds, other = goes_back(cluster, f"{job}_{namesake}", runs[namesake]), runs[1 - namesake]
    assert state_of(cluster, f"{job}_{1 - namesake}") == ("RUNNING", "0"), cluster.log()
    done = len(read_records(other))
    wait_for(lambda: len(read_records(other)) > done, cluster)
    cluster.control("scancel", f"{job}_{1 - namesake}")
    must_end_well(cluster, f"{job}_{namesake}")
    assert len(finished(runs[namesake].path).records) == rounds
    assert len(read_starts(runs[namesake])) == 2 and len(read_starts(other)) == 1


@pytest.mark.slow
def test_with_srun(cluster: Cluster, tmp_path: Path) -> None:
    """The alternative that the files name."""
    if "pmix" not in cluster.control("srun", "--mpi=list"):
        pytest.skip("this Slurm has no PMIx (libpmix-dev must be there before it starts)")
    edits = {**NO_CONFIG, r"^resumable mpirun -n \S+ --map-by slot": "resumable srun --mpi=pmix"}
    job = cluster.submit("slurm/cpu.sbatch", *TOPK, edits=edits, options=["--ntasks=3", f"--nodelist={cluster.host}"])
    must_end_well(cluster, job)
    assert finished(cluster.project / "runs" / f"fedmpi-cpu-{job}") == undisturbed(tmp_path, *TOPK)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["srun", "srun --mpi=pmi2"])
def test_jobs_of_one_rank_are_refused(cluster: Cluster, launcher: str) -> None:
    """An srun that does not know MPI, or not this one: one of the three processes says so, and nothing runs."""
    edits = {**NO_CONFIG, r"^resumable mpirun -n \S+ --map-by slot": f"resumable {launcher}"}
    job = cluster.submit("slurm/cpu.sbatch", *TOPK, edits=edits, options=["--ntasks=3"])
    (state,) = cluster.wait_until_left(job)
    log = (cluster.project / f"fedmpi-cpu-{job}.log").read_text()
    assert (state["JobState"], state["ExitCode"]) == ("FAILED", "2:0"), log
    assert log.count(": 3 processes were started") == 1, log
    assert "Traceback" not in log and not (cluster.project / "runs" / f"fedmpi-cpu-{job}").exists()
