"""FedNova: |a|_1 by hand and by the paper's formulas; two clients of one and two steps; equal steps are FedProx."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from by_hand import PLAIN, Bench, after, numbers
from small_runs import one_round, small_setup

import fedmpi
from fedmpi.methods.fednova import STEPS, FedNova, FedNovaOptions, normalizer
from fedmpi.methods.values import ClientLoad
from fedmpi.rounds.state import ServerState


@pytest.mark.parametrize(("momentum", "alpha", "steps"), [(0.5, 0.0, [1, 2.5, 4.25]), (0.0, 0.25, [1, 1.75, 2.3125])])
def test_the_length_of_a_by_hand(momentum: float, alpha: float, steps: list[float]) -> None:
    """Momentum 1/2: velocities 1, 1.5, 1.75. alpha 1/4: velocities 1, 1 - 1/4, 1 - 1.75/4. Plain SGD counts steps."""
    assert [normalizer(number, momentum, alpha) for number in (1, 2, 3)] == steps
    assert normalizer(3, 0.0, 0.0) == 3.0 and normalizer(0, momentum, alpha) == 0.0


@pytest.mark.parametrize("tau", [1, 7, 40])
def test_the_length_of_a_by_the_papers_formulas(tau: int) -> None:
    rho, alpha = 0.9, 0.05
    assert normalizer(tau, rho, 0.0) == pytest.approx((tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho))
    assert normalizer(tau, 0.0, alpha) == pytest.approx((1 - (1 - alpha) ** tau) / alpha)


def bench(momentum: float = 0.0, mu: float = 0.0) -> Bench:
    """f_0 = w^2 / 2 has one example, f_1 = (w - 4)^2 / 2 four; lr 1/4."""
    train = PLAIN.model_copy(update={"batch_size": 2, "momentum": momentum})
    return Bench(FedNova, FedNovaOptions(mu=mu), [[1.0]] * 5, [0, 4, 4, 4, 4], [[0], [1, 2, 3, 4]], train)


def test_a_round_by_hand() -> None:
    """x = 1. Client 0 goes to 3/4 in one step. Client 1 has two batches: 1 + 3/4, then + 9/16: 2.3125.

    d = -1/4 and 1.3125 / 2 = 0.65625, whose mean is 0.203125; tau_eff = 3/2: x = 1.3046875. FedAvg has 1.53125.
    """
    two = bench()
    state = two.start(1.0)
    uploads = [two.trained(number, state)[1] for number in (0, 1)]
    assert [numbers(upload) for upload in uploads] == [[-0.25], [0.65625]]
    assert [numbers(upload, STEPS) for upload in uploads] == [[1.0], [2.0]]
    new = two.round(state)
    assert numbers(new) == [1.3046875] and numbers(new, STEPS) == [1.5]


def test_momentum_and_the_proximal_term_count() -> None:
    """Client 1 with momentum 1/2 and mu = 1, eta mu = 1/4. w: 1, then velocity -3: 1.75.

    Gradient -2.25 + mu 0.75 = -1.5, velocity -1.5 - 1.5 = -3: 2.5. |a|_1 = 1 + (0.5 + 1 - 0.25) = 2.25.
    """
    upload = bench(momentum=0.5, mu=1.0)
    sent = upload.trained(1, upload.start(1.0))[1]
    assert numbers(sent, STEPS) == [2.25] and numbers(sent) == pytest.approx([1.5 / 2.25])


def test_who_has_no_step_and_who_is_restored() -> None:
    idle = bench()
    idle.owned = [[], [1]]
    client, upload = idle.trained(0, idle.start(1.0))
    assert numbers(upload) == [0.0] and numbers(upload, STEPS) == [0.0]
    assert idle.method.upload(idle.trainer.net, replace(client, is_restored=True)) is None


@pytest.mark.parametrize("mu", [0.0, 0.1])
def test_clients_of_equal_steps_make_the_round_of_fedprox(tmp_path: Path, mu: float) -> None:
    """Up to float32: with the same |a|_1 for all, tau_eff and the division cancel."""
    words = ("partition.name=iid", "rounds=1", f"method.mu={mu}")
    ours = after(tmp_path / "ours", "method.name=fednova", *words).server
    theirs = after(tmp_path / "theirs", "method.name=fedprox", *words).server
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-6)


def test_partial_work_is_normalized(tmp_path: Path) -> None:
    """Clients do a part of their steps, and tau_eff is the weighted mean of what those that they did come to."""
    words = ("method.name=fednova", "clients.work.partial=1", "train.local_epochs=3", "partition.name=class_dirichlet")
    setup = small_setup(tmp_path, *words)
    state, _, result = one_round(setup, 1, ServerState(setup.method.initial_state()))
    steps = {report.client: report.steps for report in result.reports}
    assert len(set(steps.values())) > 1
    sizes = {task.client: task.num_examples for task in result.tasks}
    total = sum(sizes[client] * normalizer(number, 0.9, 0.0) for client, number in steps.items())
    assert state.params[STEPS].item() == pytest.approx(total / sum(sizes.values()))


def test_a_client_sends_one_number_more(tmp_path: Path) -> None:
    costs = small_setup(tmp_path, "method.name=fednova").method.costs(ClientLoad(0))
    assert costs.up_bytes == costs.down_bytes + 4


def test_the_guide_to_methods_has_it_for_plain_sgd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file on the page is whole, and makes the same bits."""
    page = (Path(fedmpi.__file__).parent / "methods" / "README.md").read_text()
    (tmp_path / "from_page.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    monkeypatch.syspath_prepend(tmp_path)
    words = ("partition.name=class_dirichlet", "train.momentum=0", "rounds=2")
    ours = after(tmp_path / "ours", "method.name=fednova", "method.weighting=uniform", *words).server
    theirs = after(tmp_path / "theirs", "method.name=from_page:Nova", *words).server
    assert torch.equal(ours.pop(STEPS), theirs.pop("nova.steps"))
    assert [*ours] == [*theirs] and all(torch.equal(value, theirs[name]) for name, value in ours.items())
