"""What every test shares: one compute thread, the real data sets, and good manners under mpirun.

Tests marked `slow`, the long version of what a fast test tries once, run with `--all`; those marked `nightly` with
`--nightly`. Under `mpirun -n N python -m pytest --with-mpi` every rank runs the tests marked `mpi`, and rank 0 shows
its report; another rank's is printed at the end if that rank failed.
"""

import atexit
import io
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from data_fixtures import cifar10_root, no_network, run_data
from golden_file import told
from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir

from fedmpi.mpi import starting
from fedmpi.mpi.communicator import SerialComm
from fedmpi.mpi.launch import launched_as
from fedmpi.store.run_dir import RunDir

__all__ = ["cifar10_root", "no_network", "run_data", "told"]  # fixtures, for every test

if launched_as() is not None:
    # pytest tidies up the folders of earlier sessions when it ends: ranks that do so at once fail each other.
    os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.mkdtemp(prefix="fedmpi-tests-")
    atexit.register(shutil.rmtree, os.environ["PYTEST_DEBUG_TEMPROOT"], ignore_errors=True)

# Caches of libraries (matplotlib's and fontconfig's lists of fonts) would go to the home folder otherwise.
CACHE = Path(__file__).resolve().parents[1] / ".pytest_cache"
os.environ["XDG_CACHE_HOME"] = str(CACHE / "libraries")
set_hypothesis_home_dir(CACHE / "hypothesis")

# The same examples in each run; FEDMPI_TEST_EXAMPLES has the nightly script draw more of them.
settings.register_profile(
    "fedmpi",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=int(os.environ.get("FEDMPI_TEST_EXAMPLES", "40")),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("fedmpi")

# ONNX Runtime would leave a file of its own use in the temporary folder.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

# A script's shell has what it starts in the background ignore SIGINT, and so would all processes of the tests.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

WORLD: pytest.StashKey[SerialComm] = pytest.StashKey()


@pytest.fixture(autouse=True)
def same_signals() -> Iterator[None]:
    """A run within a test leaves handlers behind; a signal that is ignored is ignored by all later processes, too."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's own folder, which is the current one, too."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """Of a run that has not begun."""
    return RunDir.open_for(tmp_path / "run", resume=False)


@pytest.fixture(scope="session", autouse=True)
def one_compute_thread() -> None:
    """Bits are promised for one thread a rank; more threads than cores also make tests slow."""
    import torch

    torch.set_num_threads(1)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Bytes may hold a time (gzip's do), and tests must have the same names in every process."""
    return f"{len(val)} bytes" if isinstance(val, bytes) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Function) -> Iterator[None]:
    yield
    if "told" in item.funcargs:
        item.funcargs["told"].compare()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if mark := item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip(f"needs a GPU: {mark.args[0]}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the tests marked `slow`, too")
    parser.addoption("--nightly", action="store_true", help="run the tests marked `slow` and `nightly`, too")


def is_slow(item: pytest.Item, num_ranks: int) -> bool:
    """Whether a mark `slow` holds on so many ranks: `slow(but_on=3)` does on any number but 3."""
    return any(mark.kwargs.get("but_on") != num_ranks for mark in item.iter_markers("slow"))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("with_mpi", False) and "mpi4py.MPI" in sys.modules:
        # A process of pytest-xdist ends without MPI's own end, and leaves its shared memory behind.
        raise pytest.UsageError("a module of tests imports mpi4py.MPI when it is collected, which starts MPI")
    size = config.stash[WORLD].size
    # A test that is named with `::` runs, slow or not.
    is_named = any("::" in word for word in config.args)
    wants_nightly = config.getoption("nightly") or is_named
    wants_slow = config.getoption("all") or wants_nightly
    out = [
        item
        for item in items
        if (size > 1 and item.get_closest_marker("mpi") is None)
        or (not wants_slow and is_slow(item, size))
        or (not wants_nightly and item.get_closest_marker("nightly") is not None)
    ]
    config.hook.pytest_deselected(items=out)
    left_out = set(out)
    items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    # Without --with-mpi this process is alone, whatever started it: serial tests must not start MPI.
    world = starting.world() if config.getoption("with_mpi", False) else SerialComm()
    config.stash[WORLD] = world
    if world.rank > 0:
        config.pluginmanager.register(QuietRank(config, world.rank))


class QuietRank:
    """Keeps this rank's terminal report, and prints it at the end if something failed here."""

    def __init__(self, config: pytest.Config, rank: int) -> None:
        self.rank = rank
        self.report = io.StringIO()
        self.exit_status: int = pytest.ExitCode.INTERNAL_ERROR
        loud = config.pluginmanager.getplugin("terminalreporter")
        config.pluginmanager.unregister(loud)
        config.pluginmanager.register(type(loud)(config, self.report), "terminalreporter")

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self.exit_status = exitstatus

    def pytest_unconfigure(self) -> None:
        if self.exit_status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            sys.stderr.write(f"\n----- what rank {self.rank} reports -----\n{self.report.getvalue()}")
            sys.stderr.flush()
