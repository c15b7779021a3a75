"""Federated averaging.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Aguera y Arcas: Communication-Efficient Learning
of Deep Networks from Decentralized Data, AISTATS 2017, arXiv:1602.05629, Algorithm 1. Every client
trains the whole model; the server takes the weighted mean. The "width slimming" rows of FedHM's
tables are this method on a narrow model (`model.width: 0.35`).

Weights are the paper's n_k / n; `weighting: uniform` is that of FedHM's experiments, whose clients
have equal sizes. BatchNorm, the masked loss and the schedule are training settings shared by all
methods (`train`, `evaluation`).

`spectra` notes how many principal kernels the server's layers need, which PriSM shows of full-model training
(arXiv:2208.13141, section 4.3, Figures 1 and 6).
"""

from collections.abc import Mapping

from fedmpi.lowrank.kernels import effective_number
from fedmpi.lowrank.rule import Rule, plan_layers
from fedmpi.lowrank.spectrum import effective_rank, rounded
from fedmpi.lowrank.svd import gram
from fedmpi.methods.fedopt import ServerMethod, ServerOptions
from fedmpi.methods.values import Contributions, WeightedOptions
from fedmpi.tensors import Params


class FedAvgOptions(WeightedOptions, ServerOptions):
    name: str = "fedavg"
    """Federated averaging (McMahan et al. 2017): one net of any width for all clients."""
    spectra: bool = False
    """Note how many principal kernels each layer needs (PriSM's Figures 1 and 6)."""


class FedAvg(ServerMethod):
    """theta <- sum of w_p theta_p / sum of w_p; everything else is the protocol's default."""

    Options = FedAvgOptions
    options: FedAvgOptions

    def diagnostics(self, state: Params, published: Params, contributions: Contributions) -> Mapping[str, object]:
        """Returns of each layer 1 / sum p_i^2 and exp(entropy of p), with p = sigma / sum sigma."""
        if not self.options.spectra:
            return {}
        needed = {}
        rule = Rule(dense_layers=1, unroll="output", classifier=self.context.classifier())
        for layer in plan_layers(self.context.make(empty=True), rule):
            _, sigma, _ = gram(layer.unroll(state[f"{layer.name}.weight"]))
            numbers = {"effective_kernels": effective_number(sigma), "effective_rank": effective_rank(sigma)}
            needed[layer.name] = {name: rounded(number) for name, number in numbers.items()}
        return {"kernels": needed}
