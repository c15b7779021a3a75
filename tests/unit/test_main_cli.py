"""The command line: what is accepted, and that a mistake is one line, exit code 2, before anything heavy loads."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest
from data_fixtures import refusal
from golden_file import Told

from fedmpi.command.plan import main as plan
from fedmpi.main import main, parse, read_config

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PALS_RANKID", "PMIX_RANK")
TINY = ["model.width=0.03125", "model.blocks=[1]", "rounds=2"]
CONFIG = "seed: 3\nrounds: 7\nmethod: {name: fedavg}\nclients: {count: 4, per_round: 2}\n"


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def config_file(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(CONFIG)
    return str(path)


@pytest.mark.parametrize(
    ("argv", "understood"),
    [
        ([], (None, [], None, False)),
        (["x=1", "--resume", "a.yaml", "--run-dir", "runs/x"], ("a.yaml", ["x=1"], "runs/x", True)),
        (["--run-dir=runs/x"], (None, [], "runs/x", False)),
        (["a.b=a=b", "a.c=[1, 0.5]", "x.y="], (None, ["a.b=a=b", "a.c=[1, 0.5]", "x.y="], None, False)),
    ],
)
def test_words_may_stand_in_any_order_and_values_hold_anything(argv: list[str], understood: tuple[object, ...]) -> None:
    found = parse(argv)
    assert (found.config, found.overrides, found.run_dir, found.resume) == understood


def test_overrides_go_on_top_of_the_file_or_the_packaged_default(config_file: str) -> None:
    config = read_config(parse(["rounds=9", config_file, "train.lr=1e-3"]))
    assert (config.seed, config.rounds, config.train.lr, config.method.name) == (3, 9, 1e-3, "fedavg")
    assert config.where == config_file
    config = read_config(parse(["seed=4"]))
    assert (config.seed, config.data.name, config.method.name, config.clients.count) == (4, "digits", "fedhm", 20)


def test_a_resumed_run_takes_the_config_it_began_with(tmp_path: Path, config_file: str) -> None:
    """Unless another is given; and the default, with overrides, where there is none yet."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    words = ["--resume", "--run-dir", str(run_dir)]
    assert read_config(parse([*words, "rounds=70"])).seed == 0
    (run_dir / "config.yaml").write_text(CONFIG.replace("seed: 3", "seed: 8"))
    assert read_config(parse(words)).seed == 8
    assert read_config(parse([*words, "rounds=70"])).rounds == 70
    assert read_config(parse([*words, config_file])).seed == 3
    assert read_config(parse(["--run-dir", str(run_dir)])).seed == 0


def test_resuming_what_is_not_there_begins_nothing(tmp_path: Path, config_file: str, told: Told) -> None:
    """A slip in the directory's name; with a config or an override it is the first start of a batch job."""
    (tmp_path / "empty").mkdir()
    for name in ("absent", "empty", "x" * 300):
        resume = ["--run-dir", str(tmp_path / name), "--resume"]
        told(refusal(read_config, parse(resume)))
        assert read_config(parse([config_file, *resume])).rounds == 7
        assert read_config(parse(["rounds=3", *resume])).rounds == 3


def test_a_mistake_is_told_by_rank_0_only(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The others end with 0 before it, so that mpirun prints nothing more."""
    assert main(["rounds=0"]) == 2
    assert "rounds" in capsys.readouterr().err
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    assert main(["rounds=0"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_plan_trains_nothing(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder it prints one JSON object, leaves nothing behind, and answers for the launched size."""
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "5")
    assert plan([*TINY, "--json"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert printed.err == "" and found["ranks"] == 5 and len(found["tiers"]) == 4
    assert list(here.iterdir()) == []
    monkeypatch.setenv("PMI_RANK", "1")
    assert plan([*TINY, "--json"]) == 0
    assert capsys.readouterr() == ("", "")


HEAVY = ("torch", "torchvision", "mpi4py", "h5py", "sklearn", "pandas")


def run(*argv: str, cwd: Path, heavy: Sequence[str] = HEAVY) -> subprocess.CompletedProcess[str]:
    """`python -m fedmpi argv`, which also says which heavy modules it has loaded when it ends."""
    script = (
        "import sys, runpy, atexit\n"
        f"heavy = {set(heavy)}\n"
        "atexit.register(lambda: print('LOADED', sorted(heavy & set(sys.modules))))\n"
        "sys.argv = ['fedmpi', *sys.argv[1:]]\n"
        "runpy.run_module('fedmpi', run_name='__main__', alter_sys=True)"
    )
    arguments, environment = [sys.executable, "-c", script, *argv], {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(arguments, capture_output=True, text=True, timeout=600, cwd=cwd, env=environment)


@pytest.mark.slow
def test_no_rank_waits_for_torch_s_compiler(tmp_path: Path) -> None:
    """Importing it takes 2 s of every rank's start, and much of torch does so on the way; Triton takes 0.15 s. Torch
    2.7 imports sympy itself when a net without memory draws its initial values."""
    is_old = tuple(map(int, version("torch").split(".")[:2])) < (2, 8)
    words = ["clients.count=4", "clients.per_round=4", "train.local_epochs=1"]
    heavy = ("torch._dynamo", "torch._inductor", "triton", *(() if is_old else ("sympy",)))
    done = run("--run-dir", "run", "rounds=1", *words, cwd=tmp_path, heavy=heavy)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "LOADED []"), done.stderr


OF_RUNS = ("fedmpi.command.job", "fedmpi.methods.prism", "fedmpi.data.sets.cifar")


@pytest.mark.parametrize(
    ("argv", "code", "unneeded"),
    [
        ("--version", 0, ("pydantic", "yaml", *HEAVY, *OF_RUNS)),
        ("plan --help", 0, HEAVY),
        ("grid --help", 0, ("pandas",)),
        ("list", 0, (*HEAVY, *OF_RUNS[:1])),
    ],
)
def test_an_answer_loads_only_what_it_needs(argv: str, code: int, unneeded: tuple[str, ...], tmp_path: Path) -> None:
    done = run(*argv.split(), cwd=tmp_path, heavy=unneeded)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (code, "LOADED []"), done.stderr


MISTAKES = (
    ("nowhere.yaml", "nowhere.yaml", HEAVY),
    ("train.lr=fast", "train.lr", ("mpi4py", "h5py", *OF_RUNS)),
    ("clients.per_round=21", "1 to clients.count, which is 20", ("mpi4py", "h5py", *OF_RUNS)),
    ("train.lrr=1", "train.lr", ("mpi4py", "h5py", *OF_RUNS[:1])),  # looked for among the keys of all names
    ("model.name=torchvision:resnet18 train.lr=abc", "train.lr", ("mpi4py", "h5py", *OF_RUNS[:1])),
)
ONE_AFTER_THE_OTHER = """
import json, sys
from fedmpi.__main__ import main
for words, _, unneeded in json.loads(sys.argv[1]):
    code = main(words.split())
    print(code, sorted(sys.modules.keys() & unneeded), file=sys.stderr)
"""


def test_a_mistake_costs_a_moment(tmp_path: Path) -> None:
    """Exit code 2, one line, no traceback; MPI was not loaded to say so, nor what a run needs, and no file was made.

    In one process: what one mistake has loaded stays for the next.
    """
    command = [sys.executable, "-c", ONE_AFTER_THE_OTHER, json.dumps(MISTAKES)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path, env=environment)
    lines = done.stderr.splitlines()
    assert lines[1::2] == ["2 []"] * len(MISTAKES) and done.stdout == "", done.stderr
    for line, (_, named, _) in zip(lines[::2], MISTAKES, strict=True):
        assert named in line, line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("to", "code"), [(">/dev/full", 2), (">&- 2>&-", 0)])
def test_nobody_can_read_it(to: str, code: int, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = f"{sys.executable} -m fedmpi list {to}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True)
    line = "stdout: cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (code, line if code else "")
