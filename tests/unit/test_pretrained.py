"""Nets that were trained before: where values come from, what stays, and that there is one copy."""

import re
from pathlib import Path

import pytest
import torch
from data_fixtures import refusal
from safetensors.torch import save_file
from small_runs import finished, run_alone, small_config, small_setup
from torch import nn

from fedmpi.errors import ConfigError, StartupError
from fedmpi.export.__main__ import main
from fedmpi.export.nets import net_of_tier
from fedmpi.export.saved import saved_round
from fedmpi.models import create, pretrained
from fedmpi.models.trial import _tried
from fedmpi.store import checkpoint
from fedmpi.tensors import frozen_values

NET = ("model.name=cnn_femnist", "model.width=0.1", "method.name=fedavg")
HEAD = "model.trained=[classifier.*]"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A state dict of the small net, with values of another seed."""
    config = small_config(*NET)
    path = tmp_path / "weights.pt"
    torch.save(create.build(config.model, config.data.info(), 7).state_dict(), path)
    return path


def built(*words: str) -> nn.Module:
    config = small_config(*NET, *words)
    return create.build(config.model, config.data.info(), 0)


def test_the_sources_of_values(tmp_path: Path, weights: Path) -> None:
    """Files of torch (an old one, DataParallel's) and safetensors, a run's round and its newest; a head left out."""
    values = torch.load(weights, weights_only=True)
    save_file(values, tmp_path / "weights.safetensors")
    torch.save(values, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    torch.save({f"module.{name}": value for name, value in values.items()}, tmp_path / "parallel.pt")
    run_alone(tmp_path / "run", *NET, "rounds=2", "output.keep_checkpoints=2")
    rounds = [checkpoint.load(tmp_path / f"run/checkpoints/round-00000{number}.h5").server for number in (1, 2)]
    files = (weights, *(tmp_path / name for name in ("weights.safetensors", "old.pt", "parallel.pt")))
    sources = dict.fromkeys(files, values)
    sources |= {tmp_path / "run@1": rounds[0], tmp_path / "run": rounds[1]}
    for source, expected in sources.items():
        net = built(f"model.weights={source}")
        assert all(torch.equal(value, expected[name]) for name, value in net.state_dict().items())
    head, initial = built(f"model.weights={weights}", "model.weights_skip=[classifier.*]"), built()
    for name, value in head.state_dict().items():
        assert torch.equal(value, (initial.state_dict() if name.startswith("classifier") else values)[name])


def test_a_round_that_is_not_kept_and_a_state_that_is_no_net(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_alone(run, *NET[:2], "method.name=scaffold", "train.momentum=0", "rounds=2", "output.keep_checkpoints=2")
    assert "round 7 is not kept; kept: 1, 2 (output.keep_checkpoints)" in refusal(built, f"model.weights={run}@7")
    line = refusal(built, f"model.weights={run}")
    assert "has what the net has not: control" in line and f"fedmpi export {run} --format safeten" in line


def test_a_head_that_nobody_trains_is_said(weights: Path) -> None:
    words = (*NET, f"model.weights={weights}", "model.weights_skip=[classifier.*]")
    info = small_config(*NET).data.info()
    said = create.conversions(small_config(*words, "model.trained=[features.*]").model, info)
    assert len(said) == 1 and "classifier.0.weight, classifier.0.bias" in said[0] and "nobody trains" in said[0]
    assert not create.conversions(small_config(*words, HEAD).model, info)


def _half_frozen(num_classes: int, example_shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4).requires_grad_(False), nn.Linear(4, num_classes))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda values: values.pop("features.0.bias") is None or values, "lacks features.0.b"),
        (lambda values: values | {"more": torch.ones(1)}, "has what the net has not: more"),
        (lambda values: values | {"features.0.bias": torch.ones(99)}, r"has features.0.bias as \(99,\) fl.*net's is"),
        (lambda values: values | {"features.0.bias": values["features.0.bias"].int()}, r"as \(\d+,\) integers, the"),
        (lambda values: values | {"features.0.bias": values["features.0.bias"] / 0}, "in features.0.bias that are not"),
        (
            lambda values: {f"net.{name}": value for name, value in values.items()},
            "names are another net's; read it in your",
        ),
        (lambda values: [1], "holds a list, no state dict; where it was made, write torch.save"),
        (lambda values: {"epoch": 3, "net": values}, r"holds a dict \(epoch, net\), no state dict"),
        (lambda values: nn.Linear(1, 1), "holds torch.nn.modules.linear.Linear, more than tensors"),
        (lambda values: b"junk", r"\(4 B\) is damaged, or of another format"),
        (lambda values: b"", r"\(0 B\) is damaged, or of another format"),
    ],
)
def test_values_that_do_not_fit(weights: Path, change, problem: str) -> None:
    changed = change(torch.load(weights, weights_only=True))
    if isinstance(changed, bytes):
        weights.write_bytes(changed)
    else:
        torch.save(changed, weights)
    line = refusal(lambda: built(f"model.weights={weights}"))
    assert line.startswith("model.weights") and re.search(problem, line)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("model.weights=nowhere.pt",), "nowhere.pt: no such file or run"),
        (("model.weights={weights}", "model.weights_skip=[fc.*]"), r"no tensor matches 'fc.\*'; did you mean classif"),
        (("model.weights_skip=[fc.*]",), "without model.weights all values are initial ones; leave it out"),
        (("model.name=resnet18", "model.norm=frozen"), "but no model.weights give running statistics"),
        (("model.name={net}", "model.trained=[1.*]"), r"'1.\*' names 1.weight, which the net itself keeps from traini"),
        (("model.trained=[clasifier.*]",), "no parameter matches 'clasifier.*'; did you mean classifier"),
        (("model.trained=[classifier.*]", "method.name=heterofl"), "fit no net of width"),
        (("model.trained=[classifier.*]", "method.name=fedrolex"), "fit no net of width"),
        (("model.trained=[classifier.*]", "method.name=hermes"), "features.0.weight is not trained, but hermes prunes"),
        (("model.trained=[classifier.*]", "method.name=fedbn"), "keeps BatchNorm layers, and this net trains none"),
        (("model.name=torchvision:resnet18", "model.weights=IMAGENET1K_V1"), "is not on this machine: fetch https://"),
        (("model.name=torchvision:resnet18", "model.weights=IMAGENET_V1"), "or torchvision's IMAGENET1K_V1"),
    ],
)
def test_mistakes(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], problem: str
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    words = tuple(word.format(weights=weights, net=f"{__name__}:_half_frozen") for word in words)
    with pytest.raises((ConfigError, StartupError), match=problem):
        small_setup(tmp_path, *NET[2:], *(() if "model.name" in words[0] else NET[:2]), *words)


def test_only_what_is_trained_travels_and_is_saved(
    tmp_path: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others keep their values, are in the exported net, and are known by a digest at a resume."""
    words = (*NET, f"model.weights={weights}", HEAD)
    run_alone(tmp_path / "run", *words, "rounds=1")
    before = torch.load(weights, weights_only=True)
    snapshot = checkpoint.load(tmp_path / "run/checkpoints/round-000001.h5")
    assert snapshot.server.keys() == {name for name in before if name.startswith("classifier")}
    assert not torch.equal(snapshot.server["classifier.0.weight"], before["classifier.0.weight"])
    assert main([str(tmp_path / "run"), "--out", str(tmp_path / "net.safetensors")]) == 0
    assert f"{sum(value.numel() for value in before.values()):,} parameters" in capsys.readouterr().out
    net = net_of_tier(saved_round(tmp_path / "run")).net.state_dict()
    assert net.keys() == before.keys()
    assert all(torch.equal(net[name], {**before, **snapshot.server}[name]) for name in net)
    torch.save(before | {"features.0.bias": before["features.0.bias"] + 1}, weights)
    assert "holds other frozen values" in refusal(run_alone, tmp_path / "run", *words, "rounds=2", resume=True)
    assert len(finished(tmp_path / "run").records) == 1


def test_a_built_in_net_keeps_the_statistics_of_an_export(tmp_path: Path) -> None:
    """In training, too, it gives what the exported net gives in tests; a run's checkpoint has no statistics."""
    words = ("model.name=resnet18", "model.width=0.1", "model.blocks=[1,1]", "method.name=fedavg")
    run_alone(tmp_path / "run", *words, "rounds=1", "evaluation.bn=restat")
    exported = net_of_tier(saved_round(tmp_path / "run")).net
    save_file(exported.state_dict(), tmp_path / "net.safetensors")

    def frozen(source: str) -> nn.Module:
        config = small_config(*words, "model.norm=frozen", f"model.weights={tmp_path / source}")
        return create.build(config.model, config.data.info(), 0)

    some = torch.randn(4, 1, 8, 8)
    torch.testing.assert_close(frozen("net.safetensors").train()(some), exported.eval()(some))
    with pytest.raises(ConfigError, match="lacks bn1.running_mean.*; model.norm=frozen keeps running statistics"):
        frozen("run")


AVERAGES = ("fedprox", "scaffold", "fednova", "feddyn", "moon", "topk", "lgfedavg", "perfedavg", "standalone", "fdnnc")


@pytest.mark.slow
@pytest.mark.parametrize("method", [*AVERAGES, "fedhm", "prism", "orthdrop"])
def test_methods_that_average_train_a_head(tmp_path: Path, method: str) -> None:
    more = {"scaffold": ["train.momentum=0"], "fdnnc": ["method.pattern=both"], "perfedavg": ["method.beta=lr"]}
    run_alone(tmp_path / "run", *NET[:2], f"method.name={method}", HEAD, "rounds=1", *more.get(method, ()))
    state = checkpoint.load(tmp_path / "run/checkpoints/round-000001.h5").server
    assert any("classifier" in name for name in state) and not any("features" in name for name in state)


def test_all_nets_share_one_copy(tmp_path: Path) -> None:
    """One trial made them, so a node's ranks share what the trial has left, with validation data, too."""
    _tried.cache_clear()
    setup = small_setup(tmp_path, *NET[:2], "method.name=fedhm", HEAD, "evaluation.on=validation")
    assert _tried.cache_info().misses == 1
    nets = [trainer.net.module for trainer in setup.trainers]
    places = [{name: value.data_ptr() for name, value in frozen_values(net).items()} for net in nets]
    assert len(nets) > 1 and places[0] and all(other == places[0] for other in places)


def test_kept_statistics() -> None:
    """(x - 2) / sqrt(4 + 0) * 3 + 1 of x = 6 is 7, in training too; and the statistics stay."""
    norm = nn.BatchNorm1d(1, eps=0.0)
    norm.running_mean.fill_(2.0)
    norm.running_var.fill_(4.0)
    nn.init.constant_(norm.weight, 3.0)
    nn.init.constant_(norm.bias, 1.0)
    net = pretrained.with_kept_statistics(nn.Sequential(norm)).train()
    assert net(torch.tensor([[6.0], [2.0]])).tolist() == [[7.0], [1.0]]
    assert net.state_dict().keys() == nn.Sequential(nn.BatchNorm1d(1)).state_dict().keys()
    assert net[0].running_mean.item() == 2.0
