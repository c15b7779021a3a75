"""FedProx: federated averaging with a proximal term that holds local training near what was published.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: Federated Optimization in Heterogeneous Networks,
MLSys 2020, arXiv:1812.06127. Algorithm 2; eq. 2: a client lowers F_k(w) + mu/2 |w - w_t|^2, where w_t is what the
server published.

Server state: the model.

Differences from the paper:
- The local solver is the SGD of `train`. The partial work of slow clients (gamma-inexactness) is `clients.work`: the
  paper's stragglers are `partial: 0.9`, or 0.5, and `least` one of its 20 epochs.
- By default clients are sampled uniformly and p_k = n_k / n weighs them in the mean. The paper samples them with p_k
  and averages uniformly: `clients.sampling: by_size` (without replacement) and `weighting: uniform`.
"""

from dataclasses import replace

from fedmpi.config.fields import NotNegative
from fedmpi.learning.flat import FlatNet
from fedmpi.methods.fedopt import ServerMethod, ServerOptions
from fedmpi.methods.protocol import pull
from fedmpi.methods.values import Client, Training, WeightedOptions


class FedProxOptions(WeightedOptions, ServerOptions):
    name: str = "fedprox"
    """Federated averaging with a proximal term (T. Li et al. 2020)."""
    mu: NotNegative = 0.01
    """Weight of mu/2 |w - w_t|^2 in every client's loss; 0 is FedAvg."""


class FedProx(ServerMethod):
    """theta <- mean of theta_p, each trained with a pull towards the published theta."""

    Options = FedProxOptions
    options: FedProxOptions

    def count_steps(self, tier: int, num_examples: float, share: float) -> Training:
        """Counts w_t and the two passes of the proximal term: three numbers for each parameter in either."""
        training = super().count_steps(tier, num_examples, share)
        if self.options.mu == 0:
            return training
        return replace(training, values_per_update=6 * self._num_params, copies=1)

    def after_backward(self, net: FlatNet, client: Client) -> None:
        pull(net, client, self.options.mu)
