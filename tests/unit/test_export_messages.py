"""What users of `python -m fedmpi.export` are told of their mistakes, word for word."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from small_runs import run_alone
from syrupy.assertion import SnapshotAssertion

from fedmpi.export.__main__ import main
from fedmpi.store.run_dir import RunDir

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
