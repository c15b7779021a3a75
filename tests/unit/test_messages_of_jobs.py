"""What the programs of `jobs/` and `fedmpi.verify` say of mistakes, word for word: each line of `MISTAKES`.

The texts stand in this module's snapshot and nowhere else. Nothing is written for a mistake.
"""

import shlex
from pathlib import Path

import pytest
from studied_runs import own_paper, write_config
from syrupy.assertion import SnapshotAssertion

from fedmpi.studies import reproduce
from fedmpi.verify import __main__ as verify

PROGRAMS = {"reproduce": reproduce.main, "verify": verify.main}
LONG = 300 * "x"
MISTAKES = """
reproduce
reproduce fedhm
reproduce fedhm:table3 fedhm:table2
reproduce fedhn:table3
reproduce fedhm:tabel3
reproduce none/such.yaml:table1
reproduce fedhm:table3 --only Hermes
reproduce fedhm:table3 --run 1000
reproduce fedhm:table3 --run 0
reproduce fedhm:table3 --budget 0
reproduce fedhm:table3 --budget epoch=1
reproduce fedhm:table3 --budget rounds=1,rounds=2
reproduce fedhm:table3 --budget rounds=
reproduce fedhm:table3 --collect --list
reproduce own.yaml:table1 train.lt=1
reproduce own.yaml:table1 train.lr=0.1 ' seed = 7'
reproduce own.yaml:table1 --only FedAvg rounds=0
reproduce own.yaml:table1 --collect --only zzz
reproduce fdnnc:table3 --ranks 1 --only 'bfirst-full 70%' --budget rounds=0.0008
verify fedavg
"""


def test_messages_of_jobs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    write_config(tmp_path / "mine.yaml", "method.name=fedavg")
    own_paper(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    told = []
    for line in MISTAKES.split("\n")[1:-1]:
        program, *words = shlex.split(line)
        words = [word.replace("\\n", "\n") for word in words]
        assert PROGRAMS[program](words) == 2, line
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1, line
        told.append(f"$ {line:.99}\n{err}")
    assert sorted(tmp_path.rglob("*")) == before
    assert "\n".join(told).replace(str(tmp_path), "HERE") == snapshot
