"""`fedmpi.check`: what is right passes, and each kind of mistake is found, with its line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fast import fast
from golden_file import Told

from fedmpi.check import __main__ as command
from fedmpi.check import bits, things
from fedmpi.check.contract import BrokenError
from fedmpi.check.small import Finished

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
MISTAKES = {
    "Remembers": "sends another upload: trained again",
    "WritesPublished": "training changes the published tensors in place",
    "SendsOtherShapes": "fc.bias as float32 [4], expected float32 [3]",
    "LiftsTooMuch": "magnitudes promises at most",
    "LiftsInPlace": "changes the upload in place",
    "LiftsInTurn": "when clients come in another order",
    "UpdatesInPlace": "update changes the old state in place",
    "KeepsVelocity": "differs in its state: keep nothing in self between rounds",
    "StandsStill": "round 2 changes neither the state nor a memory",
    "AdaptsTheState": "testing clients changes the published tensors",
    "LeavesUnwritten": "narrow leaves fc.bias of tier 1 unwritten",
    "Raises": "KeyError: 'no such thing'",
}


def lines(place: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What the checks before the bits print."""
    kind = things.kind_of(place)
    for said, check in things.checks_of(kind, folder, things.words_of(kind, place, ())):
        command.passes(said, check)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("name", fast("StandsStill", of=MISTAKES))
def test_a_mistake_is_found_in_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = lines(f"broken_methods:{name}", tmp_path, capsys)
    assert any(line.startswith("FAIL") and MISTAKES[name] in line for line in said), said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "words", "count"),
    [("method", ["fedavgm:FedAvgM", "method.beta=0.5"], 12), ("aggregate", ["trimmed_mean:TrimmedMean"], 3)],
)
def test_the_command_on_one_and_three_ranks(kind: str, words: list[str], count: int) -> None:
    """The examples of the README pass; an option of its own is set; exit code 0."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])}
    program = [sys.executable, "-m", "fedmpi.check", *words]
    done = subprocess.run(program, capture_output=True, text=True, env=environ, timeout=600)
    first, *others = done.stdout.splitlines()
    assert (first, done.returncode) == (f"{kind} {words[0]}", 0), done.stdout + done.stderr
    assert len(others) == count and all(line.startswith(("ok", "--")) for line in others)


@pytest.mark.slow
def test_an_aggregate_of_the_last_arrival_fails_on_three_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients have unequal loads, so on three ranks another one arrives last than on one."""
    tests = Path(__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tests), os.environ.get("PYTHONPATH", "")]))
    with pytest.raises(BrokenError, match="on 3 ranks, resumed after round 2, a run differs from one alone"):
        bits.bits_stay(tmp_path, things.words_of("aggregate", "wrong_aggregates:Last", ()), 3)


def test_what_differs_is_named(told: Told) -> None:
    ours, theirs = (Finished(server, {}, [{"round": 1, "loss": loss}]) for server, loss in (("a", 1.0), ("b", 2.0)))
    assert bits.difference(ours, ours) == ""
    told(bits.difference(ours, theirs))


def test_bits_that_differ_are_a_broken_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    """Without a launcher as well: a run that is resumed."""
    results = iter(Finished(server, {}, []) for server in ("a", "b"))
    monkeypatch.setattr(bits, "run_all", lambda *arguments: None)
    monkeypatch.setattr(bits, "finished", lambda folder: next(results))
    monkeypatch.setattr(bits, "interrupted_run", lambda folder, words, ranks: None)
    with told.by(BrokenError):
        bits.bits_stay(tmp_path, (), 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no_such_module:Thing"], "No module named 'no_such_module'"),
        (["broken_methods:Nothing"], "has no attribute 'Nothing'"),
        (["brought_things:anything"], "may be a model or a partition; say which with --kind"),
        (["brought_things"], "package.module:Class"),
        (["brought_things:in_turn"], "may be a loss or a metric or a sampling; say which with --kind"),
        (["brought_things:NotANet"], "--kind"),
        (["brought_things:NotANet", "--kind", "model"], "NotANet"),
        (["broken_methods:Remembers", "method.no_such=1"], "no_such"),
    ],
)
def test_a_mistake_in_the_words_ends_with_code_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(words) == 2
    told = capsys.readouterr().err
    assert said in told and len(told.splitlines()) == 1


@pytest.mark.parametrize(
    ("place", "kind", "count"),
    [
        ("brought_things:Net", "model", 2),
        ("brought_things:linear", "model", 2),
        ("other_tasks:numbers", "data", 1),
        ("brought_things:noise", "data", 1),
        ("brought_things:dealt", "partition", 1),
        ("iid", "partition", 1),
        ("brought_things:Watcher", "observer", 1),
        ("wrong_aggregates:Last", "aggregate", 1),
    ],
)
def test_models_data_and_partitions_have_checks_of_their_own(
    place: str, kind: str, count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert things.kind_of(place) == kind
    said = lines(place, tmp_path, capsys)
    assert [line.partition(" ")[0] for line in said] == ["ok"] * count, said


def test_a_function_that_samples_clients_is_tried_in_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, starts in (("in_turn", "ok"), ("in_no_turn", "FAIL")):
        words = things.words_of("sampling", f"brought_things:{name}", ())
        ((said, check),) = things.checks_of("sampling", tmp_path, words)
        assert command.passes(said, check) == (starts == "ok")
        assert capsys.readouterr().out.startswith(starts)


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("brought_things:dealt_anew", "made twice from one seed, the partition differs"),
        ("brought_things:Misspelled", "Misspelled.run_end is never called; did you mean run_ended?"),
        ("brought_things:of_colours", "data.shape=[3,32,32]"),
    ],
)
def test_what_does_not_hold_is_said(place: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = lines(place, tmp_path, capsys)[0]
    assert said.startswith("FAIL") and why in said
