"""The tutorial runs as a script and as a notebook, and both have the same cells.

After a change of jobs/tutorial.py:

    sed -n '/^# %%/,$p' jobs/tutorial.py | jupytext --from py:percent --to ipynb --output jobs/tutorial.ipynb \\
        --opt notebook_metadata_filter=-all --opt cell_metadata_filter=-all --update-metadata \\
        '{"jupytext": null, "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}' -

What stands above the first cell is for the script alone.
"""

import json
import re
import runpy
import tempfile
import textwrap
from pathlib import Path

import pytest

JOBS = Path(__file__).resolve().parents[2] / "jobs"
CELL = re.compile(r"^# %%( \[markdown\])?\n", re.MULTILINE)


def cells_of(script: str) -> list[tuple[str, str]]:
    """(type, text) of each cell of a script in the percent format."""
    _, *parts = CELL.split(script)
    pairs = list(zip(parts[::2], parts[1::2], strict=True))
    return [
        ("markdown", re.sub(r"^# ?", "", text, flags=re.MULTILINE).strip()) if mark else ("code", text.strip())
        for mark, text in pairs
    ]


def test_notebook_and_script_have_the_same_cells() -> None:
    notebook = json.loads((JOBS / "tutorial.ipynb").read_text())
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    assert cells == cells_of((JOBS / "tutorial.py").read_text()) and len(cells) > 20
    assert not any(cell.get("outputs") for cell in notebook["cells"])


@pytest.mark.slow
def test_the_script_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In a folder that has nothing; it leaves files in temporary folders only."""
    for name in ("home", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    made = runpy.run_path(str(JOBS / "tutorial.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "finished fedhm True" in out and "most likely: 1 " in out and "Did you mean 'train.lr'" in out
    assert [*(tmp_path / "home").iterdir()] == []
    # The code in the README of `fedmpi.export` prints what its last comment says.
    text = (JOBS.parent / "fedmpi" / "export" / "README.md").read_text()
    code = text[text.index("    import torch\n") : text.index("\n| format |")]
    exec(textwrap.dedent(code).replace("quarter.pt2", str(made["folder"] / "digits.pt2")), {})
    assert capsys.readouterr().out == f"{code.rpartition(': ')[2].strip()}\n"


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel's working folder; its own files and temporary ones stay below `tmp_path`, too."""
    for name in ("HOME", "TMPDIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    return tmp_path / "HOME"


@pytest.mark.nightly
def test_the_notebook_runs(at_home: Path) -> None:
    """Every cell, in a kernel of its own; the last one says that the opened run has the scores of the made one."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(JOBS / "tutorial.ipynb", as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(at_home)}}).execute()
    shown = ["".join(output.get("text", "") for output in cell.outputs) for cell in notebook.cells if "outputs" in cell]
    assert "finished fedhm True" in shown[-1]
