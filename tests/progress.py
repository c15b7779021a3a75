"""Shows `jobs/end_if_hung.sh` which tests run: a file for each process that runs one, with the test's name in it.

The file comes when the test starts and goes when it has finished, so the folder's time is that of the last of these.
Nothing printed would do: mpirun and pytest-xdist keep output back.
"""

import os
from pathlib import Path

import pytest

FOLDER = "FEDMPI_TEST_PROGRESS"


class Progress:
    def __init__(self, folder: Path) -> None:
        self._file = folder / str(os.getpid())

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._file.write_text(f"{nodeid}\n")

    def pytest_runtest_logfinish(self) -> None:
        self._file.unlink(missing_ok=True)


def show_progress(config: pytest.Config) -> None:
    """Nothing to do without the folder, nor in the process of pytest-xdist that only hands the tests out."""
    runs_tests = hasattr(config, "workerinput") or config.getoption("dist", "no") == "no"
    if runs_tests and FOLDER in os.environ:
        config.pluginmanager.register(Progress(Path(os.environ[FOLDER])))
