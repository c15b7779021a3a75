"""What programs are told of their mistakes: the command's words, with Python's arguments in place of options."""

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from golden_file import Told
from small_runs import small_config

import fedmpi
from fedmpi.errors import ConfigError, RoundError, UserError
from fedmpi.library import spoken
from fedmpi.library.annotated import checks_arguments

ROOT = Path(__file__).resolve().parents[2]


class Runs(NamedTuple):
    shared: fedmpi.Run
    """Of fedhm, whose tiers have nets."""
    own: fedmpi.Run
    """Of lgfedavg, whose clients have nets of their own, and no net is common."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("messages")
    configs = (small_config(f"method.name={name}", "rounds=1") for name in ("fedhm", "lgfedavg"))
    return Runs(*(fedmpi.run(config, folder / config.method.name, progress=False) for config in configs))


MISTAKES: list[Callable[[Runs, Path], Any]] = [
    lambda runs, here: fedmpi.run(runs.own.config, runs.shared.path),
    lambda runs, here: fedmpi.run(run_dir=runs.shared.path / "sub", init_from=runs.shared.path),
    lambda runs, here: fedmpi.run(run_dir=here / "new", init_from=here / "none"),
    lambda runs, here: fedmpi.run(runs.own.config, Path(__file__)),
    lambda runs, here: fedmpi.run(runs.own.config, runs.shared.path, resume=True),
    lambda runs, here: runs.shared.net(),
    lambda runs, here: runs.shared.net(0.3),
    lambda runs, here: runs.own.net(1),
    lambda runs, here: runs.shared.net(1, round=7),
    lambda runs, here: runs.shared.client_net(3),
    lambda runs, here: runs.own.client_net(8),
    lambda runs, here: runs.own.client_net(0, cut=True),
    lambda runs, here: runs.own.export(here / "net.pt2"),
    lambda runs, here: runs.shared.export(here / "net.tfl", tier=1),
    lambda runs, here: runs.shared.export(here / "net.onnx", tier=1, format="pt2"),
    lambda runs, here: runs.shared.export(here / "no" / "net.pt2", tier=1),
    lambda runs, here: runs.shared.figure(tiers=[0.3]),
    lambda runs, here: runs.own.figure(y="loss"),
    lambda runs, here: runs.shared.scores["0.3"],
    lambda runs, here: runs.shared.figure(tier="1"),
    lambda runs, here: runs.shared.net(client=3),
    lambda runs, here: runs.shared.export(tier=1, client=3),
    lambda runs, here: runs.shared.partition().client(-1),
    lambda runs, here: setattr(runs.shared.config.train, "lr", 0.1),
    lambda runs, here: fedmpi.open_run(runs.shared.path.parent),
    lambda runs, here: fedmpi.open_run(runs.shared.path / "rounds.jsonl"),
    lambda runs, here: fedmpi.open_run(f"{runs.shared.path}-seed0"),
    lambda runs, here: fedmpi.plan(),
]


def test_messages_name_arguments(runs: Runs, tmp_path: Path, told: Told) -> None:
    for mistake in MISTAKES:
        with told.by((UserError, AttributeError)) as caught:  # the latter as of anything frozen
            mistake(runs, tmp_path)
        assert "--" not in str(caught.value) and "\n" not in str(caught.value)


def test_what_has_caused_an_error_names_arguments_too() -> None:
    @checks_arguments
    def call(run_dir: str) -> None:
        raise RoundError("saving") from UserError(run_dir, "take another --run-dir, or --resume; see --run-dirs")

    with pytest.raises(RoundError) as caught:
        call("--run-dir")
    assert str(caught.value.__cause__).endswith("call: run_dir: take another run_dir=, or resume=True; see --run-dirs")


def texts(module: Path) -> list[str]:
    """All texts of a module but docstrings."""
    nodes = [*ast.walk(ast.parse(module.read_text()))]
    plain = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    found = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in plain]
    return [node.value for node in found if isinstance(node.value, str)]


def test_every_option_that_a_message_names_has_its_argument() -> None:
    """In the packages that the library calls. The manifest's options are git's; no function has `--html`."""
    packages = ("rounds", "running", "store", "report", "export")
    modules = [path for name in packages for path in (ROOT / "fedmpi" / name).glob("*.py")]
    modules.append(ROOT / "fedmpi" / "results" / "compared.py")
    own = [path for path in modules if path.name not in ("__main__.py", "manifest.py")]
    named = {
        option for path in own for text in texts(path) for option in re.findall(r"(?<![\w-])--([a-z][a-z-]*)", text)
    }
    assert "run-dir" in named and named - {*spoken._ARGUMENTS} <= {"measure", "html", "names"}


def test_a_score_is_named_by_text_or_number(runs: Runs) -> None:
    scores = runs.shared.scores
    assert scores[0.25] == scores["0.25"] == scores["0.250"] and scores[1] == scores["1"]
    assert scores.get("0.3") is None and runs.own.scores["clients"].last.round == 1


def test_a_command_within_a_message_stays_one() -> None:
    error = ConfigError("run", "see --resume; to continue: mpirun -n 3 python -m fedmpi.main --run-dir a --resume")
    spoken.in_python(error, "fedmpi.run", ("run_dir", "resume"))
    said = "see resume=True; to continue: mpirun -n 3 python -m fedmpi.main --run-dir a --resume"
    assert error.problems == (said,)


def test_scores_are_of_the_examples_that_were_tested(tmp_path: Path) -> None:
    """Of a data set of which a part is used, and unknown where clients validate."""
    words = {"data.name": "digits", "data.num_train": 80, "data.num_test": 50, "rounds": 1, "clients.count": 4}
    words |= {"clients.per_round": 1, "method.name": "fedavg", "output.progress": "off", "output.report": False}
    for on, num_tested in (("test", 50), ("validation", None)):
        run = fedmpi.run(fedmpi.load_config(None, words | {"evaluation.on": on}), run_dir=tmp_path / on)
        score = run.scores["1"].last
        assert score.num_tested == num_tested
        assert score.correct == (None if num_tested is None else round(50 * score.accuracy))
