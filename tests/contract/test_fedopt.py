"""Server optimizers: two steps of each by hand, entries that nobody sent, what a checkpoint and a hash hold."""

from functools import partial
from pathlib import Path

import pytest
import torch
from narrow_nets import client_of, context, exchanged, filled, state_of
from small_runs import one_round, small_config, small_setup

from fedmpi.methods import fedopt
from fedmpi.methods.fedavg import FedAvg, FedAvgOptions
from fedmpi.methods.fedopt import Adam, AvgM, Mean, Server, ServerMethod, Yogi
from fedmpi.methods.heterofl import HeteroFL, HeteroFLOptions
from fedmpi.methods.values import Contributions, Phase
from fedmpi.rounds.state import ServerState
from fedmpi.tensors import Params

PLAIN = Contributions(Phase(), 1, 0.1, ())


def after(server: Server, *changes: float) -> Params:
    """The state after rounds whose mean change of every entry is as given, from 1."""
    method = FedAvg(context(FedAvgOptions(server=server)))
    state = state_of(method, 1.0)
    for change in changes:
        state = method.update(state, {name: state[name] + change for name in method.state_specs()}, PLAIN)
    return state


def entries(state: Params) -> list[float]:
    """Of the first tensor: x, m, and v if there is one."""
    names = ("", "server.m..", "server.v..")
    return [float(state[f"{name}hidden.weight"][0]) for name in names if f"{name}out.bias" in state]


near = partial(pytest.approx, rel=1e-6)
ADAM, YOGI = 1 + 1 / (1.1875**0.5 + 0.5), 1 + 1 / (1.25**0.5 + 0.5)


@pytest.mark.parametrize(
    ("server", "changes", "expected"),
    [
        # A momentum of zero is the mean, 1 + (4 - 1): FedAvg, which has no m.
        (AvgM(beta=0.0), [3.0], [4, 3]),
        (Mean(), [3.0], [4]),
        # m: 2, then 0.5 * 2 - 1 = 0; x: 1 + 0.5 * 2 = 2, then 2 + 0.5 * 0 = 2.
        (AvgM(lr=0.5, beta=0.5), [2.0], [2, 2]),
        (AvgM(lr=0.5, beta=0.5), [2.0, -1.0], [2, 0]),
        # beta1 = tau = 0.5, beta2 = 0.75, so v = 0.25 at first.
        # m = 1, v = 0.75 * 0.25 + 0.25 * 4 = 1.1875, x = 1 + 1 / (1.1875^0.5 + 0.5).
        (Adam(lr=1.0), [2.0], near([ADAM, 1, 1.1875])),
        # m = 1, v = 0.75 * 1.1875 + 0.25 = 1.140625, x += 1 / (1.140625^0.5 + 0.5).
        (Adam(lr=1.0), [2.0, 1.0], near([ADAM + 1 / (1.140625**0.5 + 0.5), 1, 1.140625])),
        # v = 0.25 + 0.25 * 4 = 1.25, as 0.25 < 4; then, as 1.25 > 1, v = 1.25 - 0.25 = 1.
        (Yogi(lr=1.0), [2.0], near([YOGI, 1, 1.25])),
        (Yogi(lr=1.0), [2.0, 1.0], near([YOGI + 1 / 1.5, 1, 1])),
    ],
)
def test_steps_by_hand(server: Server, changes: list[float], expected: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """x, m and v after these changes."""
    monkeypatch.setattr(fedopt, "BETA1", 0.5)
    monkeypatch.setattr(fedopt, "BETA2", 0.75)
    monkeypatch.setattr(fedopt, "TAU", 0.5)
    assert entries(after(server, *changes)) == expected


@pytest.mark.parametrize("server", [AvgM(), Adam(), Yogi()], ids=lambda server: server.name)
def test_what_nobody_sent_keeps_value_and_moments(server: Server) -> None:
    """Round 1 is of the widest net (4 units), round 2 of one unit alone: units 1 to 3 stay as round 1 left them."""
    method = HeteroFL(context(HeteroFLOptions(widths=(1.0, 0.25), server=server)))
    assert isinstance(method, ServerMethod)
    states = [state_of(method, 1.0)]
    for number, tier in ((1, 0), (2, 1)):
        client = client_of(0, tier, round_number=number)
        results = exchanged(method, states[-1], (client, filled(method, 3.0, tier)))
        brought = Contributions(Phase(), number, 0.1, [client.task], results.shares)
        states.append(method.update(states[-1], results.means, brought))
    moved = [{key: value.flatten() for key, value in state.items() if "hidden.weight" in key} for state in states[1:]]
    assert len(moved[0]) == (2 if server.name == "avgm" else 3)
    for key, before in moved[0].items():
        now = moved[1][key]
        assert torch.equal(now[1:], before[1:]) and not torch.equal(now[:1], before[:1])


def test_moments_are_server_state_that_clients_do_not_get(tmp_path: Path) -> None:
    """A round's state has them; what is published has not."""
    setup = small_setup(tmp_path, "method.name=fedavg", "method.server.name=adam")
    state, published, _ = one_round(setup, 1, ServerState(setup.method.initial_state()))
    names = set(setup.method.state_specs())
    moments = {f"server.{moment}..{name}" for name in names for moment in ("m", "v")}
    assert state.params.keys() == names | moments and published.params.keys() == names


def test_servers_have_hashes_of_their_own() -> None:
    given = [small_config("method.name=fedavg", f"method.server.name={name}") for name in ("mean", "avgm", "adam")]
    hashes = {config.hash() for config in given}
    assert len(hashes) == 3 and small_config("method.name=fedavg").hash() in hashes
