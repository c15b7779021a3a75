"""Which kernels PriSM's clients draw: by each layer's published sigma, their tier's kappa and a seed of their own."""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest
import torch
from narrow_nets import context
from torch import Tensor, nn

from fedmpi.federation.assignment import Task
from fedmpi.lowrank import kernels as kernels_module
from fedmpi.methods.prism import SIGMA, Prism, PrismOptions
from fedmpi.methods.values import Client


def prism(sizes: Iterable[int], keep_ratio: tuple[float, ...], kappa: tuple[float, ...]) -> Prism:
    """Of a net of linear layers between these sizes, all but the last low-rank."""
    sizes = tuple(sizes)

    def make() -> nn.Module:
        return nn.Sequential(*(nn.Linear(m, n) for m, n in pairwise(sizes)))

    return Prism(context(PrismOptions(keep_ratio=keep_ratio, kappa=kappa), make))


def client_of(number: int, tier: int, sigma: list[float]) -> Client:
    return Client(Task(number, tier, 3, "train", 1, 1.0), {SIGMA: torch.tensor(sigma)}, np.arange(1), 7)


def test_what_kernels_are_drawn_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of R = 4 and R = 3 kernels; r = ceil(c R) of 0.75, 0.5 and 0.25. Sigma as published, layer by layer."""
    method = prism((4, 4, 3, 2), (0.75, 0.5, 0.25), (1.5, 0.0, 4.0))
    draw, seen = kernels_module.draw_kernels, []

    def recorded(sigma: tuple[Tensor, ...], sizes: list[int], kappa: float, generator: torch.Generator) -> list[Tensor]:
        seen.append(([values.tolist() for values in sigma], sizes, kappa, generator.get_state().tolist()))
        return draw(sigma, sizes, kappa, generator)

    monkeypatch.setattr(kernels_module, "draw_kernels", recorded)
    clients = [client_of(10 + tier, tier, [9, 7, 5, 3, 8, 4, 2]) for tier in range(3)]
    for client in clients:
        method.regions(client)
    states = [client.generator("kernels").get_state().tolist() for client in clients]
    values = [[9, 7, 5, 3], [8, 4, 2]]
    assert seen == [
        (values, [3, 3], 1.5, states[0]),
        (values, [2, 2], 0.0, states[1]),
        (values, [1, 1], 4.0, states[2]),
    ]
    assert states[0] != states[1] != states[2]


def test_kernels_are_drawn_as_often_as_sigma_to_the_kappa_says() -> None:
    """One of two kernels, sigma (2, 1) in the first layer and (1, 2) in the second: the likelier one is drawn with
    p = 2^kappa / (2^kappa + 1). 400 clients, within five standard deviations sqrt(400 p (1 - p)): of kappa 2.5, 0 and 4
    340 +- 36, 200 +- 50 and 376 +- 24; kappa 1 would be 267. Seeded: this cannot fail now and then."""
    kappas = (2.5, 0.0, 4.0)
    method = prism((2, 2, 2, 2), (0.5, 0.4, 0.3), kappas)
    for tier, kappa in enumerate(kappas):
        held = [method.regions(client_of(number, tier, [2, 1, 1, 2])) for number in range(400)]
        p = 2**kappa / (2**kappa + 1)
        for layer, likelier in (("0", 0), ("1", 1)):
            times = sum(regions[f"{layer}.u.weight"][0].tolist() == [likelier] for regions in held)
            assert abs(times - 400 * p) <= 5 * (400 * p * (1 - p)) ** 0.5, (kappa, layer, times)


def test_a_client_gets_the_kernels_that_it_draws() -> None:
    """Kernel 2 of the first layer and 1 of the second outweigh the others a million times; of v the first row's."""
    method = prism((4, 4, 3, 2), (0.25,), (2.5,))
    client = client_of(0, 0, [1, 1, 1e6, 1, 1, 1e6, 1])
    state = {n: torch.arange(float(spec.num_elements)).view(spec.shape) for n, spec in method.state_specs().items()}
    out = {name: torch.zeros_like(value) for name, value in method.net(0).named_parameters()}
    method.narrow({**state, SIGMA: client.published[SIGMA]}, 0, out, client)
    for layer, kernel in (("0", 2), ("1", 1)):
        assert torch.equal(out[f"{layer}.u.weight"], state[f"{layer}.u.weight"][kernel : kernel + 1])
        assert out[f"{layer}.v.weight"].tolist() == [[float(state[f"{layer}.v.weight"][0, kernel])]]
