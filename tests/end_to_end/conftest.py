"""What the end-to-end tests share: whatever a test has started is ended with it."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

import pytest
from launched import Launch, Launched, Made, RunMain, Start, command, kill_all, launch, patched, unfolded
from small_runs import SMALL, finished, run_all, small_config, undisturbed

from fedmpi.main import COMMANDS, main
from fedmpi.mpi.communicator import SerialComm
from fedmpi.report.records import read_records
from fedmpi.store.run_dir import RunDir


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Where a test's run is to be."""
    return tmp_path / "run"


@pytest.fixture
def launches(tmp_path: Path) -> Iterator[Launch]:
    """`launches(words)`: this command, under way."""
    under_way: list[Launched] = []

    def begin(words: Sequence[str]) -> Launched:
        under_way.append(launch(tmp_path, words))
        return under_way[-1]

    yield begin
    for launched in under_way:
        kill_all(launched.process)


@pytest.fixture
def start(launches: Launch) -> Start:
    """`start(ranks, *words, run_dir=..., patch=..., options=...)`: the command on small data, under way; `patch` is
    what `patched` has first.
    """

    def begin(
        ranks: int, *words: str, run_dir: Path | None = None, patch: str = "", small: bool = True, **more: object
    ) -> Launched:
        place = () if run_dir is None else ("--run-dir", str(run_dir))
        program = {"program": patched(patch)} if patch else {}
        return launches(command(ranks, *(SMALL if small else ()), *words, *place, **program, **more))

    return begin


@pytest.fixture
def run_main(capfd: pytest.CaptureFixture[str]) -> RunMain:
    """`run_main(*arguments)`: the command in this process; its exit code, output and errors."""

    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        try:
            if arguments[:1] and arguments[0] in COMMANDS:
                code = import_module(COMMANDS[arguments[0]][0]).main(list(arguments[1:]))
            else:
                code = main(list(arguments))
        except SystemExit as error:
            code = int(error.code or 0)
        return (code, *map(unfolded, capfd.readouterr()))

    return call


@pytest.fixture
def continues(run_main: RunMain, tmp_path: Path) -> Callable[..., str]:
    """`continues(run_dir, *words)`: resumed here for two rounds more, the run has the bits of an undisturbed one; what
    it printed.
    """

    def call(run_dir: Path, *words: str) -> str:
        rounds = f"rounds={len(read_records(RunDir(run_dir))) + 2}"
        code, out, errors = run_main(*SMALL, *words, rounds, "--run-dir", str(run_dir), "--resume")
        assert code == 0, errors
        assert finished(run_dir) == undisturbed(tmp_path, *words, rounds)
        return out

    return call


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """`made(folder, *words)`: a copy, at `folder`, of the finished run of `SMALL` with these words, made once."""
    known: dict[tuple[str, ...], Path] = {}

    def copied(folder: Path, *words: str) -> Path:
        if words not in known:
            known[words] = tmp_path_factory.mktemp("made") / "run"
            run_all(small_config(*words), SerialComm(), known[words])
        return Path(shutil.copytree(known[words], folder))

    return copied
