"""Nets that users bring as a class or a function: methods train them, every mistake is one line and exit code 2."""

import random
import re
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path

import brought_nets
import numpy as np
import pytest
import torch
from fast import fast
from launched import unfolded
from small_runs import run_alone, small_config, small_setup, undisturbed

from fedmpi.check import bits
from fedmpi.check.__main__ import main as check
from fedmpi.check.contract import BrokenError
from fedmpi.check.things import takes_the_data
from fedmpi.command.plan import main as plan
from fedmpi.errors import WHOLE_NUMBERS, StartupError
from fedmpi.models import create, trial
from fedmpi.models.options import Model
from fedmpi.running.forecast import forecast
from fedmpi.running.remarks import equal_tiers, remarks
from fedmpi.running.start import check_nets

NETS = Path(__file__).resolve().parents[1] / "mynets.py"
DELTA = "fedhm method.aggregation=delta method.coverage=0.5"
HETEROFL = ("model.name=mynets:Chooses", "method.name=heterofl")
ONE_ROUND = ("rounds=1", "clients.count=5", "clients.per_round=2")
DATA = ("data.name=synthetic", "data.shape=[1,8,8]", "data.classes=4")


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that Python finds, with the nets of `mynets.py`, the README's and a module that does not load."""
    folder = tmp_path_factory.mktemp("mine")
    shutil.copy(NETS, folder)
    readme = (NETS.parents[1] / "fedmpi" / "models" / "README.md").read_text()
    (folder / "from_readme.py").write_text(readme.partition("```python\n")[2].partition("```")[0])
    (folder / "mybroken.py").write_text("import no_such_package")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder
    sys.modules.pop("mynets", None)


def brought(part: str) -> str:
    """A net whose layer keeps, draws or remembers something."""
    return f"brought_nets:BroughtOptions model.part={part}"


WIDE_OR_LOW_RANK = ("fedhm", "heterofl", "fjord", "splitmix", "hermes", "prism", "origdrop")
KINDS = [f"mynets:Net method.name={method}" for method in WIDE_OR_LOW_RANK]
KINDS += [f"mynets:{net} method.name=heterofl" for net in ("Wide", "factory")]
KINDS += [f"mynets:{net} method.name=fedhm" for net in ("Joins", "Lstm")]
TRAINS = [
    # Constructors compute with tensors, buffers choose, an embedding reads no pictures, data are never negative.
    *(f"mynets:{net}" for net in ("Chooses", "Unused", "WritesOver", "Places", "Caches", "Energy")),
    *("mynets:Computes method.name=fedhm", "mynets:Chooses method.name=fjord"),
    "mynets:Logarithm method.name=heterofl data.name=mynets:counts",
    # The net reads sizes of its layers; a layer of the method's has the sizes of the layer that it replaces.
    *(f"mynets:ReadsSizes {words}" for words in ("method.name=fedhm", "method.name=prism", "model.norm=frozen")),
    "mynets:ReadsSizes method.name=lora model.trained=none method.targets=[middle]",
    # Of `brought_nets`: constant buffers go with every method; FjORD computes with nets of several widths within one;
    # what torch's old weight norm computes cannot be copied.
    *(brought(part) for part in brought_nets.ALLOWED),
    *(f"{brought('positions')} method.name={method}" for method in ("fedhm", "heterofl", "fjord", "splitmix", "prism")),
    *(f"{brought('weight-norm')} method.name={method}" for method in ("fedhm", "prism", "fdnnc")),
]


@pytest.mark.parametrize("net", fast(KINDS[1], KINDS[-1], *TRAINS, of=[*KINDS, *TRAINS]))
def test_a_net_trains(tmp_path: Path, net: str) -> None:
    assert undisturbed(tmp_path, *ONE_ROUND, *f"method.name=fedavg model.name={net}".split()).records


@pytest.mark.parametrize("method", ["fedavg method.server.name=adam", "scaffold", DELTA])
def test_names_that_methods_derive_collide_with_none_of_a_net(tmp_path: Path, method: str) -> None:
    """A net of such names has the results of the same net by other names."""
    words = *ONE_ROUND, "rounds=2", "model.name=mynets:Named", *f"method.name={method}".split()
    names = "model.places=[server.m,control,version,own]", "model.more=weight@0"
    plain, derived = (undisturbed(tmp_path / str(len(more)), *words, *more).records for more in ((), names))
    for key in ("tiers", "train_loss"):
        assert [record[key] for record in plain] == [record[key] for record in derived]


@pytest.mark.parametrize("net", ["Text", "Flat", "mlp"])
def test_rows_of_whole_numbers_are_named_with_the_remedy(
    net: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By plan, check and run, whether the net takes tokens or not."""
    model = net if net == "mlp" else f"mynets:{net}"
    words = "data.name=mynets:codes", "method.name=fedavg", f"model.name={model}"
    monkeypatch.setattr(bits, "has_launcher", lambda ranks: False)
    takes_tokens = net == "Text"
    assert plan([*words]) == (0 if takes_tokens else 2)
    planned = capsys.readouterr()
    assert WHOLE_NUMBERS in unfolded(planned.out if takes_tokens else planned.err)
    assert check([model, "--kind", "model", words[0]]) == (0 if takes_tokens else 1)
    assert WHOLE_NUMBERS in unfolded(capsys.readouterr().out)
    with nullcontext() if takes_tokens else pytest.raises(StartupError, match="rows of whole numbers count as tokens"):
        run_alone(tmp_path / "run", *words, *ONE_ROUND)
    assert (WHOLE_NUMBERS in unfolded(capsys.readouterr().err)) == takes_tokens


def test_the_plan_names_what_an_example_is(capsys: pytest.CaptureFixture[str]) -> None:
    for words, expected in (
        ((*DATA, "model.name=mynets:Flat"), "pictures of 1 channel, 8 high and 8 wide, float32; 4 classes"),
        (("data.name=mynets:counts", "model.name=mynets:Flat"), "rows of 6 features, float32; 3 classes"),
        (("data.name=mynets:codes", "model.name=mynets:Text"), "rows of 6 tokens from 0 to 6, int64; 3 classes"),
    ):
        assert plan([*words, "method.name=fedavg"]) == 0
        assert f"examples: {expected}" in unfolded(capsys.readouterr().out)


def test_a_start_tries_the_net_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the data, the method and every width; another start tries it again."""
    tried = []
    passed = trial._passed
    monkeypatch.setattr(trial, "_passed", lambda *given, **more: tried.append(given) or passed(*given, **more))
    for count in (1, 2):
        trial._tried.cache_clear()
        run_alone(tmp_path / "run", *ONE_ROUND, f"rounds={count}", *HETEROFL, resume=count > 1)
        assert len(tried) == count


def test_the_layer_that_gives_the_classes_stays_dense(tmp_path: Path) -> None:
    """Not the one that is registered last; a layer with a hook stays dense, too."""
    words = "method.name=fedhm", "method.dense_layers=0"
    assert [*small_setup(tmp_path / "a", *words, "model.name=mynets:Flat").method.layers] == ["body", "middle"]
    assert [*small_setup(tmp_path / "b", *words, "model.name=mynets:Watched").method.layers] == ["middle"]


def test_a_clock_of_devices_guesses_no_macs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is not counted is left out of a plan, and with a clock refused by plan, check and run; MACs of no layer are
    said to have no traffic."""
    words = ("model.name=mynets:Inverts", "method.name=fedavg", "devices.name=classes")
    assert plan([*DATA, *words[:2]]) == 0
    assert "the MACs of tier 1 are not counted" in unfolded(capsys.readouterr().out)
    expected = "the MACs of 'mynets:Inverts' are not counted: it does not run without values, so a clock of devices"
    assert plan([*DATA, *words]) == 2
    assert f"model.name: {expected}" in unfolded(capsys.readouterr().err)
    assert check(["mynets:Inverts", "devices.name=classes"]) == 1
    assert expected in unfolded(capsys.readouterr().out)
    with pytest.raises(StartupError, match=expected):
        run_alone(tmp_path / "run", *ONE_ROUND, *words)
    rough = "the MACs of 'mynets:OneByOne' are of no layer, so its simulated time has them without traffic"
    words = ("model.name=mynets:OneByOne", *words[1:])
    assert plan([*DATA, *words]) == 0
    assert rough in unfolded(capsys.readouterr().out)
    run_alone(tmp_path / "run", *ONE_ROUND, *words)
    assert rough in unfolded(capsys.readouterr().err)


def test_the_net_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    words = "model.name=from_readme:net", "model.hidden=200", "method.name=fedavg"
    assert plan([*DATA, *words]) == 0 and "from_readme:net" in capsys.readouterr().out


def test_options_come_from_the_signature(tmp_path: Path) -> None:
    """Typed, with defaults; a parameter of no YAML type stays at its default."""
    config = small_config("model.name=mynets:Net", "model.channels=[4,6]", "model.pool=mean", "model.names=[a,b]")
    create.skeleton(config.model, config.data.info())
    own = {"hidden", "channels", "pool", "rate", "names"}
    assert set(type(config.model).model_fields) == {*Model.model_fields, "norm", *own}
    assert (config.model.hidden, config.model.channels, config.model.rate) == (16, (4, 6), None)
    assert small_setup(tmp_path, "model.name=mynets:factory", "model.hidden=5").config.model.hidden == 5


def test_widths() -> None:
    """A float is the share; a `Width` rounds as the method asks; without either every layer but the last is cut. A net
    that was cut has the leading entries of the whole one, times the root of the share of inputs that went."""
    rounded, wide, plain = (small_config(f"model.name=mynets:{name}") for name in ("Rounded", "Wide", "Net"))
    info = plain.data.info()

    def sizes(config: object, rounding: str) -> list[int]:
        net = create.skeleton(config.model, info, 0.5, rounding)
        return [len(part.weight) for part in (net.conv1, net.bn, net.conv2, net.fc1, net.fc2)]

    assert sizes(rounded, "ceil") == [4, 4, 6, 8, 4] and sizes(rounded, "round") == [4, 4, 6, 8, 4]
    assert sizes(wide, "round") == sizes(plain, "round") == [4, 4, 6, 8, 4]
    assert sizes(small_config("model.name=mynets:Wide", "model.width=0.5"), "round") == [2, 2, 3, 4, 4]
    whole, half = (create.build(plain.model, info, 1, width) for width in (1.0, 0.5))
    assert torch.equal(half.conv1.weight, whole.conv1.weight[:4])
    torch.testing.assert_close(half.conv2.weight, whole.conv2.weight[:6, :4] * 2**0.5)
    torch.testing.assert_close(half.fc2.bias, whole.fc2.bias * 2**0.5)
    assert (half.conv2.in_channels, half.fc1.in_features, half.bn.num_features) == (4, 24, 4)
    # An embedding is made narrower like a layer.
    text = small_config("data.name=mynets:codes", "model.name=mynets:Text", "method.name=fedavg")
    net = create.skeleton(text.model, text.data.info(), 0.5)
    assert (net.embedding.weight.shape, net.fc.weight.shape) == ((7, 4), (3, 4))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("no_such_file:Net", "cannot be imported: ModuleNotFoundError: No module named 'no_such_file'"),
        ("mybroken:Net", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("mynets:Nets", "module 'mynets' has no attribute 'Nets'"),
        ("mynets:NotANet", "is the class NotANet; expected a torch.nn.Module class"),
        ("mynets:INSTANCE", "is a net already"),
        ("mynets:TakesNothing", "takes nothing; it must take num_classes, and may take example_shape"),
        ("mynets:untyped", "takes 'x' without a default and of no type of YAML"),
        ("mynets:own_name", "has an option 'net', a name"),
        ("mynets:raises", "cannot be made with num_classes=4, example_shape=(1, 8, 8): KeyError: 'what'"),
        ("mynets:gives_text", "gives a value of type str; expected a torch.nn.Module"),
        ("mynets:Pair", "one number for each class; let forward return [0] of it"),
        ("mynets:ByName", "; let forward return ['logits'] of it"),
        ("mynets:frozen", "trains none of its parameters (requires_grad), so nothing would be trained"),
        ("mynets:Squeezes evaluation.batch_size=1", "gives (4,) of type torch.float32 for 1 example"),
        ("mynets:Squeezes train.batch_size=1", "for 1 examples; expected a float tensor of shape (1, 4)"),
        ("mynets:the_same", "gives modules that it has given before"),
        ("mynets:wrong_size", "cannot take inputs of 1 x 8 x 8"),
        ("mynets:View", "images lie in memory with their channels last, where x.view fails; write x.flatten(1)"),
        ("mynets:Net model.hiden=3", "no such key. Did you mean 'model.hidden'?"),
        ("mynets:Net model.pool=min", "Input should be 'max' or 'mean', got 'min'"),
        ("mynets:Net model.act=relu", "no such key"),
        ("mynets:Lstm method.name=heterofl", "'lstm' (LSTM) has parameters of a kind that cannot be cut"),
        ("mynets:Joins method.name=heterofl", "it joins, mixes or averages channels"),
        ("mynets:Fixed method.name=heterofl", "takes no width, and cannot be made narrower without: "),
        ("mynets:unlike method.name=heterofl", "a narrower net has 1.weight of shape (9, 64), the wider one of"),
        ("mynets:Repeats method.name=heterofl", "two of its layers share a parameter"),
        ("mynets:Hooked", "module 'body' (Linear) has a hook on its parameter 'weight', which training would"),
        ("mynets:Empty", "has a parameter 'none' without entries"),
        ("mynets:Elsewhere", "module 'middle' (Linear) has a tensor 'weight' on the device meta; make it on the CPU"),
        ("mynets:Freezes", "module 'body' (Linear) has a tensor 'weight' that forward replaces or freezes"),
        ("mynets:Detached", "gives scores without gradients (no_grad or detach in forward)"),
        ("mynets:Listed", "the net itself (Listed) computes with a parameter that it has not registered (in a list"),
        ("mynets:Extracts", "module 'body' (Linear) gets no gradients (no_grad or detach in forward)"),
        ("mynets:Measures method.name=hermes", "torch.fx cannot trace it: 'len' is not supported in symbolic tracing"),
        ("mynets:Prompts method.name=hermes", "head reads no inputs of the net"),
        ("mynets:Anneals", "the net itself (Anneals) changes its attribute 'steps' in training, which the next client"),
        ("mynets:Remembers", "module 'middle' (Linear) changes its attribute 'seen' in training"),
        ("mynets:Insists method.name=fedhm", "it fails as the method trains it: AssertionError: a linear layer only"),
        ("mynets:nothing_to_train", "has no parameters, so nothing would be trained"),
        (f"{brought('no-copies')} method.name=fedhm", "cannot be copied: TypeError: no cop"),
        *((brought(part), said) for part, (_, said) in brought_nets.REFUSED.items()),
    ],
)
def test_a_mistake_is_one_line(model: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    sys.modules.pop("mynets", None)  # so that no net has been given before
    assert plan([*DATA, "method.name=fedavg", *f"model.name={model}".split()]) == 2
    said = capsys.readouterr().err
    assert expected in said and "model" in said and said.count("\n") == 1


@pytest.mark.parametrize("net", ["Squeezes", "ChoosesByValue"])
def test_a_net_that_takes_the_batches_of_the_run_trains(tmp_path: Path, net: str) -> None:
    """Whatever it would do with others, as a client's only example, and whether it runs without values or not."""
    words = (*DATA, f"model.name=mynets:{net}", "method.name=fedavg", "data.num_test=48", "evaluation.batch_size=47")
    assert plan([*words]) == 0
    run_alone(tmp_path / "run", *words, "rounds=1")
    uneven = ("partition.name=mynets:one_and_rest", "clients.count=2", "clients.per_round=2")
    if net == "Squeezes":
        with pytest.raises(StartupError, match="for 1 examples; expected"):
            run_alone(tmp_path / "one", *words, *uneven)
        assert not (tmp_path / "one").exists()


@pytest.mark.parametrize("part", ["counter", "gradients"])
def test_a_net_that_keeps_something_is_refused(tmp_path: Path, part: str) -> None:
    """In one line, by `fedmpi check` and by a run before it has a folder; by a plan with all others of its kind, above.
    `mpi/test_drawn_nets.py` has the three agree."""
    words = f"method.name=fedavg model.name={brought(part)}".split()
    with pytest.raises(StartupError) as caught:
        run_alone(tmp_path / "run", *words, "rounds=1")
    text = caught.value.text()
    assert brought_nets.REFUSED[part][1] in text and "\n" not in text and text.startswith("model.name")
    assert caught.value.exit_code == 2 and not (tmp_path / "run").exists()
    with pytest.raises(BrokenError, match=re.escape(brought_nets.REFUSED[part][1])):
        takes_the_data(small_config(*words))


@pytest.mark.parametrize("method", ["heterofl", "fedhm"])
def test_the_check_leaves_nothing_behind(tmp_path: Path, method: str) -> None:
    """Generators, buffers, modules and client memories are as before; a second check gives the same digest."""
    setup = small_setup(tmp_path, f"method.name={method}")

    def state() -> list[object]:
        numpy = np.random.get_state()
        flat = [trainer.net.parameter.sum().item() for trainer in setup.trainers]
        modules = [part for trainer in setup.trainers for part in trainer.net.module.modules()]
        modes = [(part.training, len(part._forward_hooks)) for part in modules]
        return [torch.get_rng_state().tolist(), random.getstate(), numpy[1].tolist(), numpy[2], flat, modes]

    before, files = state(), sorted(tmp_path.rglob("*"))
    assert check_nets(setup) == () and state() == before and sorted(tmp_path.rglob("*")) == files


def test_converted_layers_are_said() -> None:
    """Of torchvision's nets as of any; fedmpi's own have nothing to convert."""
    resnet = "model.name=torchvision:resnet18 data.shape=[3,32,32]"
    norm = f"model.name={brought('instance-norm')}"
    for words, expected in ((resnet, "20 BatchNorm2d"), (norm, "1 InstanceNorm2d"), ("", "")):
        config = small_config("method.name=fedavg", *words.split())
        said = create.conversions(config.model, config.data.info())
        assert [expected in line for line in said] == [True] * bool(expected)
        assert not list(create.skeleton(config.model, config.data.info()).buffers())


@pytest.mark.parametrize("method", ["heterofl", "fjord"])
def test_a_net_that_ignores_its_width_is_told(tmp_path: Path, method: str) -> None:
    """In the plan and at the start; the same net that follows its width is fine."""
    words = f"method.name={method} model.name={brought('dropout')}".split()
    setup = small_setup(tmp_path, *words, "model.follows_width=false")
    said = remarks(setup, 1)
    assert {*said} <= {*forecast(setup.config, 1).warnings}
    assert any("no smaller at these capacities" in line for line in said) and sum("tier" in line for line in said) <= 1
    assert len(equal_tiers(small_setup(tmp_path, *words).method)) < len(equal_tiers(setup.method))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("heterofl model.follows_width=false", "tiers 1, 0.5, 0.25, 0.125: one net of"),
        ("heterofl method.widths=[0.5] model.follows_width=false", "tiers 0.5: one net of"),
        ("heterofl method.widths=[1,0.52,0.5]", "tiers 0.52, 0.5: one net of"),
        ("splitmix method.levels=[1,0.9] method.atom=0.25", "tiers 1, 0.9: one net of"),
        ("fedhm", "tiers 1, 0.5, 0.25, 0.125: one net of"),
        ("fdnnc method.rank_ratio=0.9", "tiers big, small: one net of"),
        ("heterofl", ""),
        ("fedavg", ""),
        ("fedhm method.rank_ratio=[1]", ""),
    ],
)
def test_equal_tiers_are_told(tmp_path: Path, words: str, expected: str) -> None:
    """One line for each net that tiers share."""
    said = equal_tiers(small_setup(tmp_path, *f"model.name={brought('dropout')} method.name={words}".split()).method)
    assert [line[: len(expected)] for line in said] == ([expected] if expected else [])
