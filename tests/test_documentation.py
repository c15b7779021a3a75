"""What the documents say is true: links lead somewhere, configs load, command lines can be typed as they stand."""

import re
import shlex
import signal
from dataclasses import fields
from pathlib import Path

import pytest

from fedmpi import errors
from fedmpi.config.load import load
from fedmpi.devices.expected import Expected
from fedmpi.main import parse
from fedmpi.methods.protocol import Method
from fedmpi.running.forecast import Forecast, TierForecast

ROOT = Path(__file__).resolve().parent.parent

LINK = re.compile(r"\[[^\]]*\]\(<?([^)\s>]+)>?[^)]*\)")
# `[A=1] [mpirun ...] python -m fedmpi.main ARGUMENTS`, alone on its line.
COMMAND = re.compile(r"^[\s$]*(?:\w+=\S+ )*(?:(?:mpirun|srun) .*?)?python3? -m fedmpi\.main\b(.*)", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def tracked(pattern: str) -> list[Path]:
    """The project's own files: not those of hidden folders (.venv, .git) or of runs."""
    relative = (path.relative_to(ROOT) for path in ROOT.rglob(pattern) if path.is_file())
    return sorted(ROOT / path for path in relative if not any(part[0] == "." or part == "runs" for part in path.parts))


def broken_links(text: str, folder: Path) -> list[str]:
    """Relative links that lead to no file inside the project."""
    targets = [target for target in LINK.findall(FENCE.sub("", text)) if not re.match(r"[a-z]+:|#", target)]
    paths = {target: (folder / target.split("#")[0]).resolve() for target in targets}
    return [target for target, path in paths.items() if not (path.exists() and path.is_relative_to(ROOT))]


def command_lines(text: str) -> list[list[str]]:
    """Arguments of every `[mpirun ...] python -m fedmpi.main` in a document; a synopsis (with [...]) is none."""
    found = COMMAND.findall(re.sub(r"\\\n\s*", " ", text))
    return [shlex.split(arguments, comments=True) for arguments in found if "[" not in arguments]


@pytest.mark.parametrize("path", tracked("*.md"), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_document_exist(path: Path) -> None:
    assert broken_links(path.read_text(), path.parent) == []


@pytest.mark.parametrize("arguments", command_lines((ROOT / "README.md").read_text()), ids=" ".join)
def test_command_line_of_readme_can_be_run(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    parsed = parse(arguments)
    load(parsed.config, parsed.overrides)


def test_readme_states_the_two_commands_first() -> None:
    text = (ROOT / "README.md").read_text()
    commands = re.findall(r"bash jobs/\w+\.sh|(?:mpirun .*)?python -m \S+", text)
    assert commands[:2] == ["bash jobs/quickstart.sh", "bash jobs/test.sh"]


def test_the_guide_to_methods_names_what_a_method_may_do() -> None:
    text = (ROOT / "fedmpi" / "methods" / "README.md").read_text()
    hooks = [name for name in vars(Method) if not name.startswith("_")]
    assert [name for name in hooks if f"`{name}`" not in text] == []


def section(path: str, head: str) -> str:
    """The text of a document below this head."""
    return (ROOT / path).read_text().partition(f"\n## {head}\n")[2].partition("\n## ")[0]


def test_the_plan_as_json_has_every_field() -> None:
    text = section("fedmpi/running/README.md", "The plan as JSON")
    names = [field.name for kind in (Forecast, TierForecast, Expected) for field in fields(kind)]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_table_of_events_has_every_exit_code() -> None:
    """Of the constants at the top of fedmpi/errors.py, and no others but those of signals."""
    lines = section("slurm/README.md", "Events").splitlines()
    rows = [re.split(r" *\| *", line)[3] for line in lines if line.count("|") == 5]
    of_signals = {128 + number for number in (signal.SIGINT, signal.SIGTERM)}
    in_table = {int(code) for row in rows for code in re.findall(r"\b\d+\b", row)}
    ours = {value for name, value in vars(errors).items() if name.isupper() and isinstance(value, int)}
    assert in_table == {0, *ours, *of_signals} - {errors.MAX_LINE}
