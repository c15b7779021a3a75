"""The examples in the READMEs, taken from there as they stand, run without a warning."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from launched import RunMain

from fedmpi.data import own

ROOT = Path(__file__).resolve().parents[2]


def examples(document: str) -> list[str]:
    """The indented blocks that begin with an import."""
    text = (ROOT / document).read_text()
    return [dedent(block) for block in re.findall(r"^ {4}import .*\n(?: {4}.*\n|\n(?= {4}))*", text, re.MULTILINE)]


def command(example: str) -> list[str]:
    """The words of the command in an example's comment."""
    return shlex.split(example.partition("# in its folder: fedmpi ")[2])


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In an empty folder, from which modules are imported."""
    names = ("mynets", "mysets")
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    own.forget()
    yield
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(before)


@pytest.mark.slow
def test_five_lines_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    exec(examples("README.md")[0], {})
    assert '"round": 5' in capsys.readouterr().out.replace("'", '"')


@pytest.mark.slow
def test_a_model(run_main: RunMain) -> None:
    model = examples("README.md")[1]
    Path("mynets.py").write_text(model)
    words = command(model)
    code, out, errors = run_main(*words, "output.progress=plain", "output.report=false")
    assert code == 0 and {"model.name=mynets:Net", "rounds=2"} <= {*words} and "warning" not in out + errors, errors


def test_a_function_that_gives_data(run_main: RunMain) -> None:
    data, *_ = examples("fedmpi/data/README.md")
    Path("mysets.py").write_text(data)
    words = ("data.name=mysets:spirals", "data.turns=3", "model.name=mlp", "method.name=fedavg")
    code, out, errors = run_main("plan", *words)
    assert code == 0 and "warning" not in out + errors, errors
