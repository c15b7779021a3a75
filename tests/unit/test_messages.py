"""What users are told of their mistakes, word for word: each line of `MISTAKES` on the default config.

The texts stand in this module's snapshot and nowhere else; other tests match the key and the value that a message
names.
"""

import re
import shlex
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from fedmpi.errors import ConfigError, DataError
from fedmpi.main import main

MISTAKES = """
a.yaml --rounds 3
-x
--run-dir
--resume=yes --run-dir x
--res --run-dir x
--resume
a.yaml x=1 b.yaml

fedhm_digit
configs/fedhm_digit.yaml
mine_confg
rounds
--rounds 5
--lr=0.1
train.lr:0.1
method.rank_ratio=[1, 0.5]
method.name=fjord method.server.lr=0.1

sed=1
train.lr=fast method.rank_ration=0.5 clients.per_round=400
train.lr
=3
train.lr=[
'train={lr: 1, lr: 2}'
train.lr= train.momentum.x=1 train.weight_decay=nan train.clip_norm=1e999
train.lr=.nan
rounds=1.5
train.schedule.milestones=50
method=fedhm
partition=dirichlet:0.5
train.schedule=cosine
train=0.1
lr=0.1
federation.num_clients=0
training.epochs=3
train.lr=1e-46
train.momentum=0.9999999999
method.server.name=avgm method.server.lr=1e-50
train.learning_rate=0.1
mpi.device=gpu
train.schedule.name=cosine train.schedule.milestones=[1]
method.name=[1]
train.schedule.name=cosin
data.name=npz
data.name=synthetic data.shape=[8,8]
model.name=no_such_module:Net
model.name=json

clients.per_round=21
clients.sampling=sizes
clients.sampling=nowhere:turn
clients.dropout=1
clients.work.partial=2
train.local_steps=-1
'clients.tier_blocks=[10, 5, 4]'
clients.count=1 clients.per_round=1
clients.count=2000
evaluation.personal_test=groups evaluation.clients=21
model.name=torchvision:resnet81
model.name=torchvision:resnet81 train.lr=fast 'output.observers=[json:nothing, collections:OrderedDict]'
data.name=imagenet
partition.name=uniform

partition.name=natural
partition.name=quantity_skew clients.count=719
partition.name=lottery partition.samples=5 partition.balance=0.19

method.name=fedhmm
method.name=prism method.rank_ratio=[1,0.5]
partition.name=iid partition.alpha=0.5
partition.name=non-iid
method.rank_ratio=[0.5,0.5]
method.aggregation=paper method.residual=0.5 method.coverage=1
method.aggregation=delta method.coverage=1 method.residual=0.9
method.name=heterofl method.widths=[1,0.5,0.4999999999]
method.name=splitmix method.levels=[1,0.2] method.atom=0.5
method.name=prism method.kappa=[2.5]
method.name=scaffold train.optimizer=adamw
method.name=perfedavg method.variant=HF train.precision=fp16
method.name=fedavg method.server.name=sgd
method.name=scaffold method.server.name=adam
method.name=fdnnc model.name=mlp method.pattern=bfirst method.switch_round=3 rounds=3
"""


def told(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says; always with exit code 2 and nothing on stdout."""
    assert main(shlex.split(words)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err, words
    return err


def test_messages(here: Path, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion) -> None:
    (here / "mine_config.yml").write_text("rounds: 3\n")
    text = "\n".join(f"$ {words}\n{told(words, capsys)}" for words in MISTAKES.splitlines() if words)
    text = text.replace(str(Path(__file__).parents[2]), "HERE")
    # What depends on versions: torchvision's, and how Python quotes choices.
    text = re.sub(r"torchvision \d\S+", "torchvision", text)
    assert re.sub(r"\(choose from .*?\)", "(choose from ...)", text) == snapshot
    assert [path.name for path in here.iterdir()] == ["mine_config.yml"]


def test_several_problems_are_a_line_each() -> None:
    assert ConfigError("a.yaml", "first", "second").text() == "a.yaml: 2 problems\n  first\n  second"


def test_what_would_write_to_a_terminal_is_escaped() -> None:
    """Text of servers and files gets into problems; letters of any language stay."""
    error = DataError("a\nb", "HTTP 404 \x1b[31mno\r\n\udcff größer")
    assert str(error) == error.text() == "a\\nb: HTTP 404 \\x1b[31mno\\r\\n\\udcff größer"
