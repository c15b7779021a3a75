"""What `fedmpi plot` and `fedmpi report` say of mistakes, each in one line, and that nothing is written."""

import shlex
from pathlib import Path

import pytest
from golden_file import Told
from written_runs import a_run

from fedmpi.command import plot, report

MISTAKES = """
plot
plot runs
plot runs/share --out f.pdf
plot runs/shared/config.yaml --out f.pdf
plot nowhere --out f.pdf
plot empty --out f.pdf
plot runs/young --out f.pdf
plot runs --out f
plot runs --out f.jpg
plot runs --out no/f.pdf
plot runs --out f.pdf --tex no/f.tex
plot runs --out f.pdf --tex f.pdf
plot runs --out f.pdf --tiers 1
plot runs --out f.pdf --seed 1
plot runs --out f.pdf --tier 0.3
plot runs/shared --out f.pdf --tier 0.5,1
plot runs/own --out f.pdf --y loss
plot runs --out f.pdf --y loss
plot runs --out f.pdf --y loss --tier clients
report
report runs/share
report empty
report runs/shared/report/report.html
report runs --out f.pdf
report runs --out no/f.html
report runs --tier 1
"""


def test_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], told: Told
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("runs", "empty"):
        (tmp_path / folder).mkdir()
    for name, accuracies in (("shared", [{"1": 0.5, "0.5": 0.25}]), ("own", [{"clients": 0.5}]), ("young", [])):
        a_run(tmp_path / "runs" / name, accuracies, method={"shared": "fedhm"}.get(name, "lgfedavg"), rounds=2)
    before = {*tmp_path.rglob("*")}
    for words in filter(None, MISTAKES.splitlines()):
        name, *given = shlex.split(words)
        assert {"plot": plot, "report": report}[name].main(given) == 2, words
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1, words
        told(f"$ {words}\n{err}")
    assert {*tmp_path.rglob("*")} == before


def test_the_ending_of_a_figure_may_be_in_capitals(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", [{"1": 0.5}])
    assert plot.main([str(run), "--out", str(tmp_path / "f.PDF")]) == 0
    assert (tmp_path / "f.PDF").read_bytes().startswith(b"%PDF")
