"""Each advice of a message is followed here: what provokes it, what it says to write instead, and that this works."""

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from data_fixtures import refusal
from own_data import save_npz

import fedmpi
from fedmpi.command.plan import main as plan
from fedmpi.config.load import load
from fedmpi.data import own
from fedmpi.main import main

FEW = ("method.name=fedavg", "clients.count=4", "clients.per_round=2")
SMALL = ("data.name=synthetic", "model.name=mlp", *FEW)
NPZ = ("data.name=npz", "data.path=mine.npz", "model.name=mlp", "partition.name=iid", *FEW)
QUICK = """
    data.num_train=64 data.num_test=16 train.local_epochs=1 output.report=false output.tensorboard=false
""".split()
NETS = """
import torchvision
from torch import nn
from fedmpi.methods.aggregate import ExactMean as Mean

def loss(outputs, targets): return nn.functional.cross_entropy(outputs, targets)
def turn(round, seed): return [0, round]
def score(targets, outputs): return float((outputs.argmax(1) == targets).mean())
def split(labels, num_clients, seed): return [range(i, len(labels), num_clients) for i in range(num_clients)]

class Hears:
    def round_done(self, record): pass

def resnet(num_classes):
    return torchvision.models.resnet18(num_classes=num_classes)

def small(num_classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))

class Plain(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(3072, num_classes))
"""


DATA = """
import numpy as np
import pandas
import torch

def of(**more):
    x = np.arange(120, dtype=np.float32).reshape(40, 3)
    y = np.arange(40) % 2
    return {"train_x": x, "train_y": y, "test_x": x, "test_y": y, **more}

def grouped(groups): return of(groups=groups, test_groups=groups)
def series(): return grouped(pandas.Series(["a", "b"] * 20))
def categories(): return grouped(pandas.Categorical(["a", "b"] * 20))
def mixed(): return grouped(np.array(["a", 1] * 20, dtype=object))
def as_text(): return grouped(pandas.Series(["a", "b"] * 20).to_numpy().astype(str))
def named(): return of(train_y=np.array(["a", "b"] * 20))
def numbered(): return of(train_y=np.unique(["a", "b"] * 20, return_inverse=True)[1])
def nothing(): return {}
def nobody(round, seed): return []
def stops(): return next(iter(()))
def tensors(): return of(train_x=[torch.ones(3)] * 40)
def graded(): return of(train_x=torch.zeros(40, 3, requires_grad=True))
def numbers(): return of(train_x=[[1.0, 2.0, 3.0]] * 40)
"""


@pytest.fixture(autouse=True)
def modules(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with the modules `tried` and `given`."""
    own.forget()  # as a new command has read nothing
    monkeypatch.syspath_prepend(str(here))
    Path("tried.py").write_text(NETS)
    Path("given.py").write_text(DATA)


@pytest.mark.parametrize(
    ("wrong", "advice", "right"),
    [
        ("clients.num=20", "Did you mean 'clients.count'", "clients.count=20"),
        ("clients.fraction=4", "Did you mean 'clients.per_round'", "clients.per_round=4"),
        ("train.bs=32", "Did you mean 'train.batch_size'", "train.batch_size=32"),
        ("'output.dir=a #b'", "put the value in quotes: '\"...\"'", "'output.dir=\"a #b\"'"),
        ("'output.dir=--- b'", "put the value in quotes: '\"...\"'", "'output.dir=\"--- b\"'"),
        ("'output.dir=&a b'", "quote the text", "'output.dir=\"&a b\"'"),
        ("output.dir=2024", "output.dir='\"2024\"'", "output.dir='\"2024\"'"),
        ("output.dir=true", "output.dir='\"true\"'", "output.dir='\"true\"'"),
        ("output.dir=~nobody-here/a", "is ./~nobody-here/a", "output.dir=./~nobody-here/a"),
        ("data.num_train=10", "allowed: at most 10", "data.num_train=10 clients.count=10"),
        ("evaluation.metrics=f1_macro", "write evaluation.metrics=[f1_macro]", "evaluation.metrics=[f1_macro]"),
        (
            "evaluation.metrics=f1_macro,auc",
            "write evaluation.metrics=[f1_macro,auc]",
            "evaluation.metrics=[f1_macro,auc]",
        ),
        ("output.observers=tried:Hears", "=[tried:Hears]", "output.observers=[tried:Hears]"),
        ("train.schedule.milestones=3", "write train.schedule.milestones=[3]", "train.schedule.milestones=[3]"),
        ("train.loss=./tried.py:loss", "write tried:loss", "train.loss=tried:loss"),
        ("clients.sampling=tried.py:turn", "write tried:turn", "clients.sampling=tried:turn"),
        ("evaluation.metrics=[./tried.py:score]", "write tried:score", "evaluation.metrics=[tried:score]"),
        (
            "method.name=fedavg method.aggregate=sub/tried.py:Mean",
            "write tried:Mean, in the folder sub",
            "method.name=fedavg method.aggregate=tried:Mean",
        ),
        ("output.observers=[./tried.py:Hears]", "write tried:Hears", "output.observers=[tried:Hears]"),
        ("partition.name=./tried.py:split", "write tried:split", "partition.name=tried:split"),
        ("model.name=./tried.py:Plain", "write tried:Plain", "model.name=tried:Plain"),
        (
            "model.name=torchvision:resnet18 method.name=heterofl",
            "torchvision.models.resnet18(num_classes=num_classes) is narrowed",
            "model.name=tried:resnet method.name=heterofl",
        ),
    ],
)
def test_what_a_message_advises_works(wrong: str, advice: str, right: str, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["rounds=1"] if "clients" in wrong + right else ["rounds=1", "data.name=synthetic"]
    if "model" not in right:
        common.append("model.name=mlp")
    if "method" not in right:
        common += FEW[:1]
    assert plan([*common, *shlex.split(wrong)]) == 2
    said = capsys.readouterr().err
    assert advice in said and ".yaml" not in said
    assert plan([*common, *shlex.split(right)]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "line", "right"),
    [
        ("series", "groups.astype(str)", "as_text"),
        ("categories", "groups.astype(str)", "as_text"),
        ("mixed", "groups.astype(str)", "as_text"),
        ("named", "np.unique(y, return_inverse=True)[1]", "numbered"),
        ("nothing", "has no train_x; it holds nothing; known: train_x", "tensors"),
        ("graded", "gave something that is no array: Can't call numpy() on Tensor that requires grad", "numbers"),
        ("stops", "its function failed: StopIteration (", "numbers"),
    ],
)
def test_arrays_of_a_function(wrong: str, line: str, right: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model.name=mlp", "partition.name=iid", *FEW]
    assert plan([f"data.name=given:{wrong}", *words]) == 2
    assert line in capsys.readouterr().err
    assert plan([f"data.name=given:{right}", *words]) == 0, capsys.readouterr().err


SHAPES = {
    "uint16": np.arange(20 * 8 * 6 * 3, dtype=np.uint16).reshape(20, 8, 6, 3),
    "torch's": np.linspace(-2, 3, 20 * 3 * 8 * 6, dtype=np.float32).reshape(20, 3, 8, 6),
    "0 to 1": np.linspace(0, 1, 20 * 8 * 6, dtype=np.float32).reshape(20, 8, 6),
    "sequences": np.arange(20 * 8 * 6).reshape(20, 8, 6),
    "videos": np.ones((20, 2, 8, 6, 3), np.uint8),
    "numbers": np.arange(20),
    "bits": np.ones((20, 5), bool),
}


@pytest.mark.parametrize("name", SHAPES)
def test_arrays_become_examples_by_what_the_message_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    def planned(x: np.ndarray) -> int:
        own.forget()
        save_npz(Path(), train_x=x, train_y=np.arange(20) % 2, test_x=x, test_y=np.arange(20) % 2)
        return plan([*NPZ])

    x = SHAPES[name]
    assert planned(x) == 2
    advice = [part.split(" makes ")[0] for part in re.split("; |, (?=x)|as (?=x)", said(capsys)) if "astype" in part]
    assert len(advice) == (2 if x.ndim in (3, 4) else 1)
    for expression in advice:
        assert planned(eval(expression, {"x": x})) == 0, capsys.readouterr().err
    if name == "torch's":
        pictures = eval(advice[0], {"x": x})
        assert pictures.shape == (20, 8, 6, 3) and (pictures.min(), pictures.max()) == (0, 255)


@pytest.mark.parametrize(
    ("targets", "advice"),
    [
        (np.arange(20)[:, None] % 3, "train_y.ravel()"),
        (np.eye(3)[np.arange(20) % 3], "train_y.argmax(1)"),
        (np.arange(20)[:, None] % 3 * 1.0, "y.ravel().astype(int)"),
        (np.arange(20) % 3 * 1.0, "y.ravel().astype(int)"),
        (np.arange(20) % 3 + 1, "np.unique(y, return_inverse=True)[1]"),
    ],
)
def test_targets_become_classes_by_what_the_message_says(
    targets: np.ndarray, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.linspace(0, 1, 60, dtype=np.float32).reshape(20, 3)
    save_npz(Path(), train_x=x, train_y=targets, test_x=x, test_y=targets)
    plan([*NPZ])
    assert f" {advice}" in said(capsys)
    own.forget()
    y = eval(advice, {"np": np, "y": targets, "train_y": targets})
    save_npz(Path(), train_x=x, train_y=y, test_x=x, test_y=y)
    assert plan([*NPZ]) == 0 and "; 3 classes" in said(capsys)


@pytest.mark.parametrize("far", ["features", "targets"])
def test_standardizing_ends_a_divergence(far: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A plan says it, and the run that diverges says it in place of a lower rate."""
    noise = np.random.default_rng(0).normal(size=(60, 3))
    arrays = {"x": noise, "y": noise[:, 0] if far == "targets" else np.arange(60) % 2}
    key = far[0].replace("f", "x").replace("t", "y")
    words = [*NPZ, "rounds=1", "data.test_share=0.3", "train.local_epochs=3"]
    words += ["output.report=false", "output.tensorboard=false"]
    given = arrays[key] * 1e7 + 3e6
    save_npz(Path(), **arrays | {key: given})
    line = "standardize them: subtract the mean and divide by the std"
    assert plan(words) == 0
    assert line in " ".join(capfd.readouterr().out.split())
    with pytest.raises(SystemExit):
        main([*words, "--run-dir", "far"])
    ended = " ".join(capfd.readouterr().err.split()).partition("DivergenceError")[2]
    assert line in ended and "train.lr=" not in ended
    own.forget()
    save_npz(Path(), **arrays | {key: (given - given.mean(0)) / given.std(0)})
    assert main([*words, "--run-dir", "near"]) == 0
    assert line not in capfd.readouterr().err


def said(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    return " ".join(f"{out}{err}".split())


def test_an_npz_file_of_other_names_is_told_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = np.ones((20, 3), np.float32), np.arange(20) % 2
    save_npz(Path(), X_train=x, y_train=y, X_test=x, y_test=y)
    assert plan([*NPZ]) == 2
    line = "has no train_x; it holds X_test, X_train, y_test, y_train; known: train_x, train_y, test_x, test_y"
    assert line in said(capsys)


@pytest.mark.parametrize(
    ("words", "line", "right"),
    [
        (
            ["clients.availability=times.csv"],
            "no client takes part (clients.availability, clients.sampling or devices.too_small keep all away)",
            ["clients.availability=times.csv"],
        ),
        (
            ["clients.dropout=0.99", "clients.per_round=1"],
            "no upload arrives (clients.dropout=0.99, clients.per_round=1)",
            ["clients.dropout=0.5", "clients.per_round=2"],
        ),
    ],
)
def test_rounds_without_clients_name_the_cause(
    words: list[str], line: str, right: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("times.csv").write_text("0,5,9\n")
    assert plan([*SMALL, "rounds=3", *words]) == 2
    err = said(capsys)
    assert err.startswith(f"clients: in each of 3 rounds {line}") and ".yaml" not in err
    assert err.endswith("; a run would change nothing; have 1 upload or more arrive in one of them")
    Path("times.csv").write_text("0,1,3\n")
    assert plan([*SMALL, "rounds=3", *right]) == 0


def test_plan_as_an_option_of_run(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("plan", "list"):
        assert main([f"--{word}", "rounds=1"]) == 2
        assert f"unrecognized arguments: --{word}; write fedmpi {word}; see" in said(capsys)


def test_a_key_of_an_inner_section_is_sought_there(called: Callable[..., str]) -> None:
    line = called("method.aggregate.name=trimmed_mean", "method.aggregate.share=0.2")
    assert "no such key. Known keys: name, trim" in line and "devices" not in line
    assert "f1_macro is given twice" in called("evaluation.metrics=[f1_macro,f1_macro]")


def test_a_link_to_nothing_is_said(called: Callable[..., str]) -> None:
    for name in ("run", "run.yaml"):
        Path(name).symlink_to("/nowhere/at/all")
    assert "a symbolic link whose target is missing" in called("--run-dir", "run")
    assert "a symbolic link whose target is missing" in called("output.dir=run")
    assert called("run.yaml") == "run.yaml: no such file.\n"


def test_a_net_that_no_module_has_by_name() -> None:
    class Local: ...

    for thing in (Local, lambda num_classes: None):
        assert "at the top of its module" in refusal(fedmpi.load_config, model={"name": thing})


@pytest.mark.parametrize("where", ["yaml", "word", "option", "call"])
def test_a_tilde_is_the_home_folder(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    words = [*SMALL, "rounds=1", *QUICK]
    Path("a.yaml").write_text("output: {dir: ~/runs}\n")
    more = {"yaml": ["a.yaml"], "word": ["output.dir=~/runs"], "option": ["--run-dir=~/runs/one"]}
    if where == "call":
        fedmpi.run(load(None, words), "~/runs/one", progress=False)
    else:
        assert main([*words, *more[where]]) == 0
    assert len(list((tmp_path / "home" / "runs").iterdir())) == 1 and not Path("~").exists()


@pytest.mark.parametrize("name", ["k=v/a.yaml", "lr=1.yaml"])
def test_a_file_with_an_equals_sign_in_its_path_is_a_config(name: str) -> None:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text("rounds: 1\nmodel: {name: mlp}\n")
    assert plan([name]) == 0


@pytest.mark.parametrize("folder", ["/proc", "/proc/fedmpi"])
def test_a_run_in_proc_is_refused(folder: str, called: Callable[..., str]) -> None:
    assert "takes no new files; name another" in called("--run-dir", folder)


@pytest.mark.parametrize(("first", "said"), [("4", True), ("5", False)])
def test_of_settings_given_twice_the_last_counts(first: str, said: bool, capfd: pytest.CaptureFixture[str]) -> None:
    assert plan([*SMALL, f"rounds={first}", "rounds=5"]) == 0
    out, err = capfd.readouterr()
    assert ": 5 rounds on" in out and ("rounds: given twice; 5 counts\n" in out) == said and not err


def test_options_that_stand_twice_are_refused(called: Callable[..., str]) -> None:
    assert "--run-dir is given twice" in called("--run-dir", "a", "--run-dir=b")


@pytest.fixture
def called(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def call(*words: str) -> str:
        assert main([*SMALL, *words]) == 2
        said = capfd.readouterr().err
        assert len(said.splitlines()) == 1
        return said

    return call


def test_a_run_without_a_standard_output_goes_on() -> None:
    words = [*SMALL, "rounds=1", *QUICK, "--run-dir", "closed"]
    command = shlex.join([sys.executable, "-m", "fedmpi.main", *words])
    assert subprocess.run(["sh", "-c", f"{command} >&- 2>&-"]).returncode == 0
    assert fedmpi.open_run("closed").is_finished


def test_an_end_of_another_job_is_named(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL, *QUICK, "rounds=2", "--run-dir", "stale", "--resume"]
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) - 7200))
    assert main(words) == 75
    said = " ".join("".join(capfd.readouterr()).split())
    assert "over 2:0" in said and "unset it" in said
    monkeypatch.delenv("SLURM_JOB_END_TIME")
    assert main(words) == 0
