"""Nets of transformers and timm, through a user's class or function: a plan, rounds of FedAvg and of LoRA."""

from importlib import import_module
from pathlib import Path

import pytest
import torch
from small_runs import run_alone, small_config
from torch import nn

from fedmpi.export.nets import net_of_tier
from fedmpi.export.saved import saved_round
from fedmpi.models import create
from fedmpi.results.run import Run
from fedmpi.running.forecast import forecast
from fedmpi.store import checkpoint

pytestmark = pytest.mark.slow

NETS = {
    "bert": ("model.name=hub_nets:Bert", "data.name=hub_nets:reviews"),
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


@pytest.mark.parametrize("net", ["bert", "gpt2", "vit"])
def test_adapters_are_trained(tmp_path: Path, net: str) -> None:
    """A (r, in) and B (out, r) beside each linear layer; half of the clients have the rank 4, half 2. The last layer of
    GPT-2 has the weights of the embedding, and so no adapter."""
    words = (*NETS[net], *LORA, *TRAINS)
    layers = {name: part for name, part in built(*words).named_modules() if type(part).__name__ in ("Linear", "Conv1D")}
    if net == "gpt2":
        del layers["lm_head"]
    sides = [tuple(part.weight.shape) for part in layers.values()]
    by_rank = [4 * sum(min(rank, *both) * sum(both) for both in sides) for rank in (4, 2)]
    assert len(sides) > 4 and [tier.up_bytes for tier in forecast(small_config(*words), 1).tiers] == by_rank
    run_alone(tmp_path / "run", *words)
    assert Run(tmp_path / "run").records[-1]["protocol_up_bytes"] == 4 * sum(by_rank)
    state = checkpoint.load(tmp_path / "run/checkpoints/round-000002.h5").server
    changes = [value for name, value in state.items() if name.endswith(".change")]
    assert len(changes) == len(sides) and all(value.any() for value in changes)  # all were zero


def test_a_tuned_gpt2_is_exported_as_transformers_has_it(tmp_path: Path) -> None:
    """Its Conv1D has a weight (in, out), which becomes W + (s B A)^T; s is 16 / 4."""
    words = (*NETS["gpt2"], *LORA, *TRAINS)
    run_alone(tmp_path / "run", *words)
    saved = saved_round(tmp_path / "run", overrides=NETS["gpt2"])
    net = net_of_tier(saved, "4").net
    theirs = import_module("hub_nets").Gpt2(num_classes=10)
    theirs.load_state_dict(net.state_dict())
    tokens = torch.arange(6).view(1, 6)
    assert torch.equal(theirs.eval()(tokens), net(tokens))
    name = "transformer.h.0.mlp.c_fc"
    a, b = (saved.published.params[f"{name}.{part}"] for part in ("a", "b"))
    expected = built(*words).get_submodule(name).weight + (b[:, :4] @ a[:4]).t()
    torch.testing.assert_close(theirs.get_submodule(name).weight.detach(), expected)


def test_layers_without_adapters_are_named(tmp_path: Path) -> None:
    words = ("model.name=hub_nets:resnet", *LORA)
    (line,) = [line for line in forecast(small_config(*words), 1).warnings if "adapters" in line]
    assert "beside conv1 (Conv2d), layer1.0.conv1 (Conv2d), " in line and line.endswith(" and 10 more")
    (line,) = [line for line in forecast(small_config(*NETS["gpt2"], *LORA, *TRAINS), 1).warnings if "adapters" in line]
    assert line.endswith("no adapters beside lm_head (its weight is another layer's, too)")


def test_the_file_that_transformers_writes(tmp_path: Path) -> None:
    """It leaves out the last layer, whose weights are the embedding's."""
    torch.manual_seed(7)
    saved = import_module("hub_nets").Gpt2(num_classes=10)  # not before: it takes seconds
    saved.save_pretrained(tmp_path)
    words = (*NETS["gpt2"], f"model.weights={tmp_path}/model.safetensors", "train.masked_loss=false")
    net = built(*words, "partition.name=iid")
    assert net.lm_head.weight is net.transformer.wte.weight
    for name, value in saved.state_dict().items():
        assert torch.equal(net.state_dict()[name], value)
