"""Local training against a bare torch loop on an ordinary net, the masked loss by hand, divergence."""

import contextlib
import math
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from narrow_nets import context, flat
from small_runs import run_alone, small_config, small_setup, undisturbed
from torch import Tensor, nn
from torch.nn import functional as F

from fedmpi import seeds
from fedmpi.check.contract import published_for
from fedmpi.config.schema import Train
from fedmpi.data.batches import Draws, batch_bounds
from fedmpi.federation.assignment import Task
from fedmpi.learning.flat import FlatNet
from fedmpi.learning.local import LocalTrainer, MaskedCrossEntropy, batches_of, plain_step
from fedmpi.lowrank.modules import LowRank
from fedmpi.methods.prism import Prism, PrismOptions
from fedmpi.methods.values import Client
from fedmpi.models import create
from fedmpi.rounds.client import local_work, simulate_client
from fedmpi.rounds.publish import publish
from fedmpi.rounds.state import ServerState, Setup, plan_phase

EXAMPLES = np.arange(30)


def test_masked_cross_entropy_by_hand() -> None:
    """Logits (1, 5, 2), class 1 absent, target 2: the logit 5 becomes 0, not minus infinity.

    loss = log(e^1 + e^0 + e^2) - 2; minus infinity would give log(e^1 + e^2) - 2.
    """
    loss = MaskedCrossEntropy(torch.tensor([True, False, True]))
    logits = torch.tensor([[1.0, 5.0, 2.0]], requires_grad=True)
    value = loss(logits, torch.tensor([2]))
    assert value.item() == pytest.approx(math.log(math.e + 1 + math.e**2) - 2, rel=1e-6)
    value.backward()
    shares = [math.e / (math.e + 1 + math.e**2), 0.0, math.e**2 / (math.e + 1 + math.e**2) - 1]
    assert logits.grad[0].tolist() == pytest.approx(shares, rel=1e-6)
    for present in (None, torch.tensor([True] * 3)):
        assert torch.equal(
            MaskedCrossEntropy(present)(logits, torch.tensor([2])), F.cross_entropy(logits, torch.tensor([2]))
        )


def trained(setup: Setup, tier: int = 0, lr: float = 0.1) -> tuple[LocalTrainer, Draws]:
    """The tier's trainer after one client's local training, from the initial state."""
    method, trainer = setup.method, setup.trainers[tier]
    task = Task(0, tier, 1, "train", len(EXAMPLES), 1.0)
    published = published_for(method, method.initial_state(), {tier})
    client = Client(task, published, EXAMPLES, 0)
    method.narrow(published, tier, trainer.net.params)
    draws = setup.data.draws(EXAMPLES, setup.config.train.local_epochs, generator())
    trainer.run(draws, lr, MaskedCrossEntropy(None), plain_step, partial(method.after_backward, client=client))
    return trainer, draws


def generator() -> torch.Generator:
    return seeds.torch_generator("test", 1)


def bare_loop(
    setup: Setup, net: nn.Module, draws: Draws, sgd: torch.optim.Optimizer, penalty: Callable = lambda net: 0.0
) -> None:
    """What anybody would write: epochs, batches, zero_grad, backward, step."""
    for epoch in range(setup.config.train.local_epochs):
        for start, stop in batch_bounds(len(EXAMPLES), setup.config.train.batch_size):
            inputs, targets = setup.data.train_batch(draws, epoch, start, stop)
            sgd.zero_grad()
            (F.cross_entropy(net(inputs), targets) + penalty(net)).backward()
            sgd.step()


@pytest.mark.parametrize(
    ("momentum", "weight_decay", "clip_norm"), [(0.0, 0.0, None), (0.9, 5e-4, None), (0.0, 1e-4, 0.5), (0.0, 1e-4, 1e9)]
)
def test_training_equals_a_bare_loop(
    tmp_path: Path, momentum: float, weight_decay: float, clip_norm: float | None
) -> None:
    """On an ordinary net and torch's SGD as it comes, bit for bit.

    The trainer steps over one flat vector with the fused kernel. Its vectorized part rounds as torch's
    default does; its scalar tail, which ours never reaches (tensors are padded to 64 bytes), does not.
    With `clip_grad_norm_` the norm is summed over one flat vector here and tensor by tensor there: float32 rounding.
    """
    words = (f"train.momentum={momentum}", f"train.weight_decay={weight_decay}")
    words += (f"train.clip_norm={clip_norm}",) if clip_norm else ()
    setup = small_setup(tmp_path, "method.name=fedavg", "train.local_epochs=2", *words)
    trainer, draws = trained(setup)
    net = create.build(setup.config.model, setup.data.info, setup.config.seed).to(memory_format=torch.channels_last)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=momentum, weight_decay=weight_decay)
    clip = partial(nn.utils.clip_grad_norm_, list(net.parameters()), clip_norm or math.inf)
    norms = []
    sgd.register_step_pre_hook(lambda *_: norms.append(float(clip())))
    bare_loop(setup, net, draws, sgd)
    assert max(norms) > 0.5
    rounding = {"rtol": 1e-4, "atol": 1e-6} if clip_norm else {"rtol": 0, "atol": 0}
    for name, value in net.named_parameters():
        torch.testing.assert_close(trainer.net.params[name], value.detach(), msg=name, **rounding)


@pytest.mark.parametrize("plus_l2", [False, True])
def test_frobenius_decay_against_autograd(tmp_path: Path, plus_l2: bool) -> None:
    """In place of L2 on the factors, or beside it: a bare loop with lambda/2 |U V^T|_F^2 in its loss.

    The gradient is a product of Gram matrices here and autograd's there: float32 rounding, some 1e-7 a step,
    amplified by 8 steps of training. 1e-4 would still show a wrong coefficient (lambda = 0.05, L2 = 0.02).
    """
    words = ("method.rank_ratio=[1,0.5]", "method.frobenius_decay=0.05", f"method.plus_l2={str(plus_l2).lower()}")
    setup = small_setup(tmp_path, "method.name=fedhm", *words, "method.dense_layers=1", "train.weight_decay=0.02")
    start = setup.trainers[1].net.params
    setup.method.narrow(published_for(setup.method, setup.method.initial_state(), {1}), 1, start)
    net = setup.method.net(1)
    with torch.no_grad():
        for name, value in net.named_parameters():
            value.copy_(start[name])
    trainer, draws = trained(setup, tier=1, lr=0.02)
    factors = {id(p) for part in low_rank_parts(net) for p in (part.u.weight, part.v.weight)}
    groups = [
        {"params": [p for p in net.parameters() if id(p) not in factors], "weight_decay": 0.02},
        {"params": [p for p in net.parameters() if id(p) in factors], "weight_decay": 0.02 if plus_l2 else 0.0},
    ]
    sgd = torch.optim.SGD(groups, lr=0.02, momentum=setup.config.train.momentum)
    bare_loop(setup, net, draws, sgd, lambda net: 0.025 * sum((p.weight**2).sum() for p in low_rank_parts(net)))
    assert len(factors) == 8
    for name, value in net.named_parameters():
        torch.testing.assert_close(trainer.net.params[name], value.detach(), rtol=1e-4, atol=1e-5, msg=name)


def low_rank_parts(net: nn.Module) -> list[LowRank]:
    return [part for part in net.modules() if isinstance(part, LowRank)]


BAD_LOSSES = {"nan": float("nan"), "infinite": float("inf"), "above 1000": 1000.5}


@pytest.mark.parametrize("bad", BAD_LOSSES)
@pytest.mark.parametrize("bad_step", [0, 1, 3])
def test_the_last_finite_parameters_are_those_of_the_last_good_loss(tmp_path: Path, bad: str, bad_step: int) -> None:
    """Gradients of 1 at lr 1/2 take 1/2 off each parameter a step. The loss at step s is bad, so steps 0..s-1 were
    good, and the parameters that the last of them was taken at are start - (s - 1) / 2 (the start if s = 0).
    """
    words = ("train.on_divergence=upload_last_finite", "train.momentum=0", "train.weight_decay=0")
    setup = small_setup(tmp_path, "method.name=fedavg", *words)
    trainer = setup.trainers[0]
    losses: Iterator[float] = iter([1.0] * bad_step + [BAD_LOSSES[bad]] + [1.0] * 9)

    def backward(net: FlatNet, inputs: Tensor, targets: Tensor, loss: Callable) -> Tensor:
        for gradient in net.grads.values():
            gradient.fill_(1.0)
        return torch.tensor(next(losses))

    for value in trainer.net.params.values():
        value.fill_(8.0)
    draws = setup.data.draws(EXAMPLES, 1, generator())
    outcome = trainer.run(draws, 0.5, MaskedCrossEntropy(None), backward, lambda net: None)
    assert not outcome.finite and outcome.steps == bad_step + 1
    trainer.restore_last_finite()
    left = {float(value) for tensor in trainer.net.params.values() for value in tensor.flatten()}
    assert left == {8.0 - max(0, bad_step - 1) / 2}


def test_a_loss_of_1000_is_not_yet_divergence(tmp_path: Path) -> None:
    setup = small_setup(tmp_path, "method.name=fedavg")
    draws = setup.data.draws(EXAMPLES, 1, generator())
    run = setup.trainers[0].run
    outcomes = [
        run(draws, 1e-9, MaskedCrossEntropy(None), lambda *_, v=value: torch.tensor(v), lambda net: None)
        for value in (1000.0, 1000.1)
    ]
    assert [outcome.finite for outcome in outcomes] == [True, False]
    assert outcomes[0].loss == 1000.0 and outcomes[0].steps == len(batch_bounds(30, small_config().train.batch_size))


def test_frobenius_decay_comes_before_clipping(tmp_path: Path) -> None:
    """At u = 1, v = 2 and lambda = 10 decay adds (10 u v^2, 10 u^2 v) = (40, 20) to (-37, -16): (3, 4),
    of norm 5, is cut to 1/2, so (0.3, 0.4). A step of lr 1 ends at 0.7 and 1.6; clipping first, near -38.5 and -17.8.
    """
    options = PrismOptions(keep_ratio=(1.0,), frobenius_decay=10.0)
    two_layers = partial(nn.Sequential, *(nn.Linear(1, 1, bias=False) for _ in range(2)))
    method = Prism(context(options, two_layers))
    start = {"0.u.weight": torch.tensor([[1.0]]), "0.v.weight": torch.tensor([[2.0]]), "1.weight": torch.ones(1, 1)}
    net, data = flat(method, 0, start), small_setup(tmp_path, "method.name=fedavg").data
    trainer = LocalTrainer(net, data, Train(batch_size=32, momentum=0.0, clip_norm=0.5), list(method.own_decay))

    def backward(net: FlatNet, inputs: Tensor, targets: Tensor, loss: Callable) -> Tensor:
        net.grads["0.u.weight"].fill_(-37.0)
        net.grads["0.v.weight"].fill_(-16.0)
        return torch.tensor(1.0)

    client = Client(Task(0, 0, 1, "train", len(EXAMPLES), 1.0), start, EXAMPLES, 0)
    draws = data.draws(EXAMPLES, 1, generator())
    after = partial(method.after_backward, client=client)
    assert trainer.run(draws, 1.0, MaskedCrossEntropy(None), backward, after).steps == 1
    ended = [float(net.params[f"0.{half}.weight"]) for half in "uv"]
    assert ended == pytest.approx([0.7, 1.6], abs=1e-6)


def test_drop_last_keeps_whole_batches(tmp_path: Path) -> None:
    """8 + 8 + 8 + 6 leaves three; 17 by 8 (8 + 9, the lone one joined) keeps two of 8; fewer than a batch stay."""
    setup = small_setup(tmp_path, "method.name=fedavg", "train.drop_last=true", "train.local_epochs=2")
    assert batches_of(setup.config.train, 30) == [(0, 8), (8, 16), (16, 24)]
    assert batches_of(setup.config.train, 17) == [(0, 8), (8, 16)]
    assert batches_of(setup.config.train, 5) == [(0, 5)] and batches_of(setup.config.train, 0) == []
    draws, loss = setup.data.draws(EXAMPLES, 2, generator()), torch.tensor(1.0)
    outcome = setup.trainers[0].run(draws, 0.1, MaskedCrossEntropy(None), lambda *_: loss, lambda net: None)
    assert outcome.steps == 6


# Nets that draw from global generators (dropout: torch's).

DROPOUT = ("model.name=torchvision:squeezenet1_1", "data.shape=[3,32,32]", "method.name=fedavg", "rounds=2")
DROPOUT += ("evaluation.bn=restat", "train.schedule.milestones=[]")


def test_generators_are_seeded_and_left_alone() -> None:
    """Torch's, Python's and numpy's: the numbers follow from the seed, and the outer streams continue, also after an
    error."""

    def outer() -> list[object]:
        return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]

    before, drawn = outer(), []
    for seed in (1, 2**62, 1):
        with contextlib.suppress(ZeroDivisionError), seeds.global_generators(seed, torch.device("cpu")):
            drawn.append((torch.rand(3).tolist(), random.random(), np.random.random()))
            raise ZeroDivisionError
    assert drawn[0] == drawn[2] and all(one != other for one, other in zip(drawn[0], drawn[1], strict=True))
    assert outer() == before


def test_each_training_has_generators_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their seeds are mixed of the purpose (batches, or what a net draws), the phase, the run's seed, the round and the
    client."""
    setup = small_setup(tmp_path, "method.name=fedavg", "seed=3")
    for number in (1, 2):
        task = plan_phase(setup, number, setup.method.phases(number)[0]).tasks[-1]
        client = Client(task, {}, setup.partition.client(task.client), 3)
        expected = seeds.mix(f"batches:{task.phase}", 3, number, task.client)
        assert local_work(setup, client).generator.initial_seed() == expected
    published = publish(setup, ServerState(setup.method.initial_state()), 2, 0)
    assert setup.method.tier_specs  # so that no net is made below
    global_generators = seeds.global_generators
    seeded = []

    def noted(seed: int, *device: object) -> object:
        seeded.append(seed)
        return global_generators(seed, *device)

    monkeypatch.setattr(seeds, "global_generators", noted)
    simulate_client(setup, published.plan.tasks[-1], published)
    assert seeded == [seeds.mix(f"dropout:{task.phase}", 3, 2, task.client)]


def test_a_resumed_run_draws_as_an_uninterrupted_one(tmp_path: Path) -> None:
    """One round, then resumed for the second, equals two in a row, whatever the global generator's state is; it is left
    as it was found."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    run_alone(tmp_path / "parts", *DROPOUT, "rounds=1")
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    found = run_alone(tmp_path / "parts", *DROPOUT, "mpi.exchange=reduce", resume=True)
    torch.manual_seed(3)
    assert found.server == undisturbed(tmp_path, *DROPOUT).server
