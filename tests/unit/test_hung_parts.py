"""`jobs/test.sh` ends a part in which no test finishes any more, with all its processes, and says which test hung."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from launched import is_running
from progress import FOLDER

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 600.0
"""Nothing here takes more than seconds; this only ends a hang."""


def ended_if_hung(silence_s: int, script: str) -> subprocess.CompletedProcess[str]:
    words = ["bash", str(ROOT / "jobs" / "end_if_hung.sh"), str(silence_s), "bash", "-c", script]
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)


@pytest.mark.slow
def test_a_hung_part_ends_with_all_its_processes(tmp_path: Path) -> None:
    """One that ignores SIGINT, one in a session of its own whose parent has ended, and one that is stopped."""
    script = f"""
        echo tests/a.py::test_b >"${FOLDER}/$$"
        (setsid sleep 1000 & echo $! >>{tmp_path}/pids)
        sleep 1000 & kill -STOP $!; echo $! >>{tmp_path}/pids
        trap '' INT; echo $$ >>{tmp_path}/pids
        while true; do sleep 1000; done
    """
    done = ended_if_hung(3, script)
    assert done.returncode == 124, done
    assert done.stderr.splitlines()[-1].endswith(" 3 s; ended in tests/a.py::test_b")
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 3 and not any(map(is_running, pids))


@pytest.mark.slow
def test_a_part_with_progress_may_take_longer() -> None:
    script = f'for _ in {{1..30}}; do echo a >"${FOLDER}/1"; sleep 0.1; rm "${FOLDER}/1"; sleep 0.1; done; exit 7'
    started = time.monotonic()
    assert ended_if_hung(5, script).returncode == 7
    assert time.monotonic() - started > 5, "as long as the silence that counts as hung, or this shows nothing"


def test_what_outlives_a_part_is_ended(tmp_path: Path) -> None:
    runs = "until [ $(cat /proc/$!/comm) = sleep ]; do sleep 0.01; done"  # with its variables, which the kernel tells
    script = f"setsid sleep 1000 >/dev/null 2>&1 & echo $! >{tmp_path}/pid; {runs}"
    assert ended_if_hung(1000, script).returncode == 0
    assert not is_running(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_a_running_test_is_known_and_its_end_is_seen(tmp_path: Path, options: Sequence[str]) -> None:
    """In the process that runs it, and in no other; afterwards none is running, and the folder is younger."""
    (tmp_path / "test_it.py").write_text(
        "import os\nfrom pathlib import Path\n\n"
        f"def test_it():\n    (file,) = Path(os.environ['{FOLDER}']).iterdir()\n"
        "    assert file.name == str(os.getpid()) and file.read_text() == 'test_it.py::test_it\\n'\n"
    )
    (tmp_path / "conftest.py").write_text("from progress import show_progress as pytest_configure\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    folder = tmp_path / "running"
    folder.mkdir()
    os.utime(folder, (0, 0))
    environ = {**os.environ, FOLDER: str(folder), "PYTHONPATH": str(ROOT / "tests")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environ, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(folder.iterdir()) == [] and folder.stat().st_mtime > 0


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """`jobs/test.sh`, with a `python` and an `mpirun` that do what the file `first` says, then what `others` says."""
    (tmp_path / "jobs").mkdir()
    for name in ("test.sh", "end_if_hung.sh"):
        shutil.copy(ROOT / "jobs" / name, tmp_path / "jobs")
    set_up = f"set -euo pipefail\ntop={tmp_path}\nPATH={tmp_path}:$PATH\nranks_environment() {{ :; }}\n"
    set_up += 'whole_number() { echo "${!1:-$2}"; }\n'
    (tmp_path / "jobs" / "setup.sh").write_text(set_up)
    for name in ("python", "mpirun"):
        (tmp_path / name).write_text(f"#!/bin/bash\n[ -e {tmp_path}/calls ] && file=others || file=first\n")
        with open(tmp_path / name, "a") as program:
            program.write(f'echo "$*" >>{tmp_path}/calls\n. {tmp_path}/$file\n')
        (tmp_path / name).chmod(0o755)
    (tmp_path / "others").write_text("echo '== 3 passed in 0.1s =='\n")
    return tmp_path


def test_a_hung_part_fails_and_the_others_run(project: Path) -> None:
    """While the first part hangs, the seconds in which `end_if_hung.sh` counts take no time."""
    hangs = project / "hangs"
    sleep = f'#!/bin/sh\n[ "$1" = 1 ] && [ -e {hangs} ] || exec /bin/sleep "$@"\n'
    (project / "sleep").write_text(sleep)
    (project / "sleep").chmod(0o755)
    begins = f'trap "rm {hangs}; exit 1" INT\necho tests/a.py::test_b >"${FOLDER}/$$"\ntouch {hangs}\n'
    (project / "first").write_text(f"{begins}/bin/sleep 1000\n")
    command, environ = ["bash", str(project / "jobs" / "test.sh")], {**os.environ, "FEDMPI_TEST_SILENCE_S": "100"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environ)
    assert done.returncode == 1 and len((project / "calls").read_text().splitlines()) == 8, done
    lines = done.stdout.splitlines()
    assert " 100 s; ended in tests/a.py::test_b)" in lines[-8], done
    assert all(" passed, " in line and "3 passed in 0.1s" in line for line in lines[-7:])


def test_ctrl_c_reaches_the_tests_and_ends_all(project: Path) -> None:
    """As a terminal does it: SIGINT to the whole group. What pytest says then is still shown."""
    said = "trap 'echo 1 failed in 0.1s; exit 2' INT"
    (project / "first").write_text(f"{said}\ntouch {project}/ready\nwhile true; do sleep 0.1; done\n")
    command = ["bash", str(project / "jobs" / "test.sh")]
    with open(project / "out", "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        deadline = time.monotonic() + LIMIT_S
        while not (project / "ready").exists():
            assert time.monotonic() < deadline and process.poll() is None, (project / "out").read_text()
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert "1 failed in 0.1s" in (project / "out").read_text()
    assert len((project / "calls").read_text().splitlines()) == 1
