"""Exported nets give the reported numbers of correct answers, from the file alone, at any batch size."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from examples.principal_kernels import drawn
from export_nets import Plain
from fast import fast
from own_data import save_npz
from small_runs import run_alone
from syrupy.assertion import SnapshotAssertion

from fedmpi.export.__main__ import main
from fedmpi.export.command import check_file
from fedmpi.export.formats import FORMATS
from fedmpi.export.nets import TrainedNet, cut_net, factorized_layers, net_of_client, net_of_tier
from fedmpi.export.saved import saved_round
from fedmpi.report.records import read_records
from fedmpi.rounds.evaluate import test_tiers as score_tiers
from fedmpi.store.run_dir import RunDir

CLIENT = "client"
UNEVEN = "partition.name=class_dirichlet"
METHODS = {
    "fedhm": (),
    "prism": (),
    "heterofl": (),
    "splitmix": ("method.levels=[1,0.5,0.25]", "method.atom=0.25"),
    "hermes": ("method.accuracy_threshold=0",),
    "lgfedavg": (),
    "perfedavg": ("method.beta=lr",),
    "standalone": (),
    "origdrop": (),
    "fdnnc": ("method.upload=half",),
}
TOKENS = {
    "lstm": ("model.name=lstm_char", "method.name=fedhm"),
    "tied": ("model.name=export_nets:Tied", "method.name=fedavg"),
}
PICTURES = {
    "mine": ("model.name=export_nets:Plain", "method.name=fedhm"),
    "torchvision": (
        *("model.name=torchvision:mobilenet_v3_small", "data.shape=[3,32,32]", "method.name=fedavg"),
        "evaluation.bn=restat",
    ),
    "batch": ("method.name=fedhm", "evaluation.bn=batch"),
}
OF_METHODS = [
    *[("fedhm", tier) for tier in ("0.25", "1")],
    *[("prism", tier) for tier in ("server", "0.4")],
    *[("heterofl", "0.5"), ("splitmix", "0.25")],
    *[(method, net) for method in ("hermes", "perfedavg") for net in ("1", CLIENT)],
    *[("lgfedavg", CLIENT), ("standalone", CLIENT), ("origdrop", "full"), ("origdrop", "0.2")],
    *[("fdnnc", "big"), ("fdnnc", "small")],
]
OF_NETS = [*[(name, "1") for name in ("tied", "torchvision")], ("lstm", "0.5")]

RunOf = Callable[[str], Path]
Trained = Callable[..., TrainedNet]


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> RunOf:
    """The folder of a finished run of this case, made once."""
    folder = tmp_path_factory.mktemp("runs")

    def run(name: str) -> Path:
        if not (folder / name).exists():
            words = TOKENS.get(name) or PICTURES.get(name) or (f"method.name={name}", *METHODS[name], UNEVEN)
            rounds = ("rounds=1",) if name == "torchvision" else ()
            tokens = ("data.name=npz", f"data.path={_texts(folder)}") if name in TOKENS else ()
            run_alone(folder / name, *tokens, *words, *rounds)
        return folder / name

    return run


def _texts(folder: Path) -> Path:
    x = np.random.default_rng(0).integers(0, 11, (160, 9))
    y = (x[:, 0] + x[:, 1]) % 3
    return save_npz(folder / "texts", train_x=x[:120], train_y=y[:120], test_x=x[120:], test_y=y[120:])


@pytest.fixture(scope="module")
def trained_of(run_of: RunOf) -> Trained:
    def trained(name: str, net: str, **more: str) -> TrainedNet:
        words = [word for word in PICTURES.get(name, TOKENS.get(name, ())) if ":" in word]
        saved = saved_round(run_of(name), overrides=words)
        if net != CLIENT:
            return net_of_tier(saved, net, **more)
        assert saved.setup.personal_tests is not None
        return net_of_client(saved, int(saved.setup.personal_tests.sizes.argmax()), **more)

    return trained


def written(folder: Path, trained: TrainedNet, name: str) -> Path:
    path = folder / f"net.{name}"
    path.write_bytes(FORMATS[name].pack(trained))
    return path


def reported(trained: TrainedNet) -> float | None:
    """What the run's own files say."""
    folder = RunDir(trained.saved.path)
    if trained.name.startswith(CLIENT):
        lines = (folder.report_dir / "clients.csv").read_text().splitlines()
        return float(dict(line.split(",") for line in lines)[trained.name.removeprefix("client ")])
    scores = read_records(folder)[-1]["tiers"]
    return scores.get(trained.name.removeprefix("tier "), {}).get("accuracy")


FAST = [("fedhm", "0.25"), ("prism", "0.4")]
IN_CI = [("splitmix", "0.25"), ("hermes", CLIENT), ("torchvision", "1"), ("lstm", "0.5")]


@pytest.mark.parametrize(("name", "net"), fast(*FAST, of=[*OF_METHODS, *OF_NETS], slow=IN_CI))
def test_torch_gives_the_reported_count_exactly(tmp_path: Path, trained_of: Trained, name: str, net: str) -> None:
    """The state of safetensors and the graph of pt2; for all examples at once and for a single one."""
    trained = trained_of(name, net)
    if (accuracy := reported(trained)) is not None:
        assert trained.accuracy.correct / trained.accuracy.num_tested == accuracy
    examples = trained.saved.setup.data.test_batch_of(trained.test_examples)
    for format_name in ("safetensors", "pt2"):
        path = written(tmp_path, trained, format_name)
        found = check_file(path, trained, FORMATS[format_name])
        assert found.holds and found.correct == trained.accuracy.correct and found.num_other == 0
        answers = FORMATS[format_name].load(path, trained)
        every = answers(examples[0])
        assert int((every.argmax(1) == examples[1]).sum()) == trained.accuracy.correct
        torch.testing.assert_close(answers(examples[0][:1].contiguous()), every[:1])


@pytest.mark.parametrize(("name", "net"), fast(of=[*OF_METHODS, *OF_NETS], slow=IN_CI))
def test_onnx_agrees(tmp_path: Path, trained_of: Trained, name: str, net: str) -> None:
    trained = trained_of(name, net)
    path = written(tmp_path, trained, "onnx")
    found = check_file(path, trained, FORMATS["onnx"])
    assert found.holds and found.largest_difference < 1e-3
    assert [file.name for file in tmp_path.iterdir()] == ["net.onnx"]
    answers = FORMATS["onnx"].load(path, trained)
    assert len(answers(trained.example()[:1])) == 1


def test_statistics_are_those_of_the_test(run_of: RunOf) -> None:
    """Without them in the checkpoint it is the same net: they are estimated with the round's seeds."""
    saved = saved_round(run_of("fedhm"))
    assert list(saved.snapshot.statistics) == ["1", "0.5", "0.25", "0.125"]
    ours = net_of_tier(saved, "0.5")
    older = replace(saved, snapshot=replace(saved.snapshot, statistics={}))
    theirs = net_of_tier(older, "0.5")
    assert theirs.accuracy == ours.accuracy and not ours.accuracy.in_batches
    for name, value in ours.net.state_dict().items():
        assert torch.equal(value, theirs.net.state_dict()[name]), name


def test_after_tests_with_batch_statistics_both_accuracies_are_known(trained_of: Trained) -> None:
    """The file's is that of a test with re-estimated statistics."""
    trained = trained_of("batch", "0.5")
    saved = trained.saved
    assert saved.snapshot.statistics == {} and trained.accuracy.in_batches
    assert trained.accuracy.reported == reported(trained)
    evaluation = saved.setup.config.evaluation.model_copy(update={"bn": "restat"})
    setup = replace(saved.setup, config=saved.setup.config.model_copy(update={"evaluation": evaluation}))
    scores = score_tiers(setup, saved.number, saved.published)
    assert trained.accuracy.share == scores["0.5"].accuracy


def test_a_plain_net_of_the_same_layers_takes_the_state(tmp_path: Path, trained_of: Trained) -> None:
    """Dense: the very layers of the user's class. Factorized: the layer `u`, then `v`."""
    from safetensors.torch import load_file

    trained = trained_of("mine", "0.5", dense=True)
    net = Plain(4, (1, 8, 8))
    net.load_state_dict(load_file(written(tmp_path, trained, "safetensors")))
    inputs, _ = trained.saved.setup.data.test_batch(0, 48)
    assert torch.equal(net.eval()(inputs), trained.net(inputs))
    factorized = trained_of("mine", "0.5")
    (layer,) = factorized_layers(factorized.net)
    state = load_file(written(tmp_path, factorized, "safetensors"))
    product = state[f"{layer}.v.weight"] @ state[f"{layer}.u.weight"]
    torch.testing.assert_close(product, net.get_submodule(layer).weight.detach())
    torch.testing.assert_close(factorized.net(inputs), trained.net(inputs))


def test_a_cut_net_is_smaller_and_answers_alike(tmp_path: Path, trained_of: Trained) -> None:
    whole = trained_of("hermes", CLIENT)
    assert whole.masks and not all(bool(mask.all()) for mask in whole.masks.values()), "nothing is pruned"
    small = cut_net(whole)
    sizes = [sum(value.numel() for value in one.net.parameters()) for one in (small, whole)]
    assert sizes[0] < sizes[1]
    inputs, _ = whole.saved.setup.data.test_batch(0, 40)
    torch.testing.assert_close(small.net(inputs), whole.net(inputs), rtol=1e-4, atol=1e-5)
    found = check_file(written(tmp_path, small, "pt2"), small, FORMATS["pt2"])
    assert found.holds and found.num_other == 0


@pytest.mark.slow
def test_costs_of_both_are_printed_where_a_net_is_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], run_of: RunOf, trained_of: Trained
) -> None:
    client = trained_of("hermes", CLIENT).name.split()[1]
    out = tmp_path / "net.safetensors"
    assert main([str(run_of("hermes")), "--client", client, "--cut", "--format", "safetensors", "--out", str(out)]) == 0
    out_text = capsys.readouterr().out
    uncut, cut = (int(text.replace(",", "")) for text in re.findall(r"([\d,]+) parameters", out_text))
    kept = re.search(r"([\d.]+) % of the parameters remain", out_text)
    assert kept is not None and float(kept[1]) == round(100 * cut / uncut, 1) < 100


@pytest.mark.slow
def test_the_best_saved_round_stays(tmp_path: Path) -> None:
    words = ("method.name=fedhm", UNEVEN, "rounds=7", "output.keep_checkpoints=1", "train.lr=0.3")
    means = {
        record["round"]: sum(scores["accuracy"] for scores in record["tiers"].values()) / len(record["tiers"])
        for record in run_alone(tmp_path, *words).records
    }
    best = max(means, key=lambda number: (means[number], -number))
    assert best != 7, "a run whose last round is the best says nothing"
    assert [number for number, _ in RunDir(tmp_path).checkpoints()] == [7, best]
    assert saved_round(tmp_path, "best").number == best and saved_round(tmp_path, "last").number == 7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "absent", "program"),
    [
        ("pt2", "fedmpi", "import torch; net = {}; print(net(torch.zeros(3, 1, 8, 8)).shape[0])"),
        ("onnx", "torch", "import onnxruntime, numpy as n; x = n.zeros((3, 1, 8, 8), n.float32); print(len({}))"),
    ],
)
def test_the_file_loads_as_it_is_printed(
    here: Path, capsys: pytest.CaptureFixture[str], run_of: RunOf, form: str, absent: str, program: str
) -> None:
    """In a process that has none of the packages that the file does not need, for a batch of three."""
    assert main([str(run_of("fedhm")), "--tier", "0.25", "--format", form, "--check", "--out", f"net.{form}"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f" needs {FORMATS[form].needs} " in told
    loading = told.partition(" load it ")[2].partition(" input ")[0]
    script = program.format(loading.replace(", then run(", ".run("))
    script += f"\nimport sys\nassert '{absent}' not in sys.modules and 'fedmpi' not in sys.modules"
    done = subprocess.run([sys.executable, "-P", "-c", script], env={}, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


def test_another_accuracy_than_the_records_is_found(here: Path) -> None:
    """Exit code 1 where the file does not give what the records say."""
    (record,) = run_alone(here / "run", "method.name=fedavg", "rounds=1", "evaluation.bn=restat").records
    folder = RunDir(here / "run")
    found = f'"accuracy": {record["tiers"]["1"]["accuracy"]}'
    text = folder.records_path.read_text()
    assert found in text
    folder.records_path.write_text(text.replace(found, '"accuracy": 1.0', 1))
    assert main(["run", "--format", "safetensors", "--check"]) == 1


def test_what_principal_kernels_respond_to_is_drawn(run_of: RunOf, tmp_path: Path) -> None:
    """PriSM's Figure 3, tests/examples/principal_kernels.py: in each row an image and the maps of three kernels."""
    run = run_of("prism")
    figure = drawn(str(run), "server", "stages.0.0.conv1")
    figure.savefig(tmp_path / "kernels.png")
    shown = [axes.images[0].get_array() for axes in figure.axes]
    images, _ = saved_round(run, "last").setup.data.test_batch(0, 4)
    assert len(shown) == 16
    for picture, image in zip(shown[::4], images, strict=True):
        assert (picture == image.mean(0).numpy()).all()
    assert all(picture.std() > 0 for picture in shown)


# What users are told of their mistakes, word for word.


MISTAKES = """
nowhere
ruin
run/checkpoints/round-000001.h5
.
run other
run tier=1
run --tiers 1
run --round 7
run --round first
run --tier 0.3
run --tier 1 --client 3
run --client 3
run --tier 1 --format tflite
run --tier 1 --out missing/net.pt2
run --tier 1 --out net.tfl
run --tier 1 --out net.onnx --format pt2
run --tier 1 --format safetensors
run --tier 1 --format onnx
run method.name=heterofl --tier 1
own
own --tier 1
own --client 8
own --client 0 --cut
run --tier 1 --cut
code
code model.name=export_nets:Branching
code model.name=export_nets:Branching --format onnx
damaged
empty
"""
MISSING = ("onnx", "onnxscript", "safetensors", "safetensors.torch")


@pytest.mark.slow
def test_messages(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    words = {
        "run": ("method.name=fedhm",),
        "own": ("method.name=lgfedavg",),
        "code": ("method.name=fedavg", "model.name=export_nets:Branching"),
        "damaged": ("method.name=fedavg",),
        "empty": ("method.name=fedavg",),
    }
    for name, settings in words.items():
        run_alone(here / name, *settings, "rounds=1")
    RunDir(Path("damaged")).checkpoint_path(1).write_bytes(b"no checkpoint")
    RunDir(Path("empty")).checkpoint_path(1).unlink()
    capsys.readouterr()

    def told(words: str) -> str:
        with monkeypatch.context() as without:
            for package in MISSING if "Branching" not in words else ():
                without.setitem(sys.modules, package, None)
            assert main(shlex.split(words)) == 2, words
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1, words
        return err

    text = "\n".join(f"$ {words}\n{told(words)}" for words in MISTAKES.splitlines() if words)
    # What depends on versions: torch's words, and how Python quotes choices.
    text = text.replace(str(here), "FOLDER")
    text = re.sub(r"traced: .*?; take", "traced: ...; take", text)
    assert re.sub(r"\(choose from .*?\)", "(choose from ...)", text) == snapshot
    assert not [*here.glob("*.*")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_a_file_that_no_runtime_loads_is_not_left(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = "model.name=export_nets:Projected"
    run_alone(here / "run", "method.name=fedavg", net, "rounds=1")
    capsys.readouterr()
    assert main(["run", net, "--tier", "1", "--format", "onnx"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "onnx" in err
    assert not [*here.glob("*.onnx")]
