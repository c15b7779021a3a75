"""Nets of transformers and timm, through a user's class or function: a plan, rounds of FedAvg and of LoRA."""

from importlib import import_module
from pathlib import Path

import pytest
import torch
from small_runs import run_alone, small_config
from torch import nn

from fedmpi.models import create
from fedmpi.results.run import Run
from fedmpi.running.forecast import forecast
from fedmpi.store import checkpoint

pytestmark = pytest.mark.slow

NETS = {
    "bert": ("model.name=hub_nets:Bert", "data.name=hub_nets:reviews"),
    "gpt": ("model.name=hub_nets:Gpt", "data.name=hub_nets:sentences"),
    "gpt2": ("model.name=hub_nets:Gpt2", "data.name=hub_nets:sentences"),
    "vit": ("model.name=hub_nets:vit",),
    "resnet": ("model.name=hub_nets:resnet",),
}
TRAINS = ("rounds=2", "clients.per_round=8", "partition.name=iid", "train.masked_loss=false", "train.local_epochs=2")
TRAINS = (*TRAINS, "train.optimizer=adamw", "train.lr=0.01", "train.schedule.milestones=[]")
LORA = ("method.name=lora", "method.ranks=[4,2]", "model.trained=none")


def built(*words: str) -> nn.Module:
    config = small_config(*words)
    return create.build(config.model, config.data.info(), 0)


@pytest.mark.parametrize("net", NETS)
def test_all_values_are_trained(tmp_path: Path, net: str) -> None:
    words = (*NETS[net], "method.name=fedavg", *TRAINS)
    num_bytes = sum(value.nbytes for value in built(*words).parameters())
    assert forecast(small_config(*words), 1).tiers[0].up_bytes == num_bytes
    run_alone(tmp_path / "run", *words)
    first, last = Run(tmp_path / "run").records
    assert last["train_loss"] < first["train_loss"] and last["protocol_up_bytes"] == 8 * num_bytes


@pytest.mark.parametrize("net", ["bert", "gpt", "vit"])
def test_adapters_are_trained(tmp_path: Path, net: str) -> None:
    """A (r, in) and B (out, r) beside each linear layer; half of the clients have the rank 4, half 2."""
    words = (*NETS[net], *LORA, *TRAINS)
    sides = [(part.in_features, part.out_features) for part in built(*words).modules() if isinstance(part, nn.Linear)]
    by_rank = [4 * sum(min(rank, *both) * sum(both) for both in sides) for rank in (4, 2)]
    assert len(sides) > 4 and [tier.up_bytes for tier in forecast(small_config(*words), 1).tiers] == by_rank
    run_alone(tmp_path / "run", *words)
    assert Run(tmp_path / "run").records[-1]["protocol_up_bytes"] == 4 * sum(by_rank)
    state = checkpoint.load(tmp_path / "run/checkpoints/round-000002.h5").server
    changes = [value for name, value in state.items() if name.endswith(".change")]
    assert len(changes) == len(sides) and all(value.any() for value in changes)  # all were zero


def test_the_file_that_transformers_writes(tmp_path: Path) -> None:
    """It leaves out the last layer, whose weights are the embedding's."""
    torch.manual_seed(7)
    saved = import_module("hub_nets").Gpt2(num_classes=10)  # not before: it takes seconds
    saved.save_pretrained(tmp_path)
    words = (*NETS["gpt2"], f"model.weights={tmp_path}/model.safetensors", "train.masked_loss=false")
    net = built(*words, "model.weights_skip=[lm_head.weight]", "partition.name=iid")
    assert net.lm_head.weight is net.transformer.wte.weight
    for name, value in saved.state_dict().items():
        assert torch.equal(net.state_dict()[name], value)
