"""The coordinate-wise trimmed mean: of each entry the lowest and the highest values do not count.

D. Yin, Y. Chen, K. Ramchandran, P. Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates,
ICML 2018, Definition 2. Use it as `method.aggregate=trimmed_mean:TrimmedMean`.

Differences from the paper: of an entry that only some clients hold, the values of those are trimmed; clients count
alike.
"""

from collections import defaultdict

import torch

SHARE = 0.2
"""Of the values of an entry this share is left out at each end."""


class TrimmedMean:
    """Keeps what each client sends, so that the order in which it arrives has no part in the result."""

    def __init__(self, specs, bounds, total_weight, device):
        self.specs, self.device = specs, device
        self.sent = defaultdict(dict)

    def add(self, client, name, value, weight, region):
        whole = torch.full(self.specs[name].shape, torch.nan, device=self.device)
        whole[... if region is None else region] = value
        self.sent[name][client] = whole

    def result(self, name, weight, otherwise):
        if not self.sent[name]:
            return otherwise.clone()
        by_client = [self.sent[name][client] for client in sorted(self.sent[name])]
        values = torch.stack(by_client).double().sort(dim=0).values  # NaN comes last
        counts = values.isfinite().sum(0)
        left_out = (SHARE * counts + 1e-9).floor()  # 0.29 of 100 are 29
        places = torch.arange(len(values), device=self.device).view(-1, *[1] * otherwise.dim())
        counted = (places >= left_out) & (places < counts - left_out)
        mean = torch.where(counted, values, 0.0).sum(0) / counted.sum(0)
        return torch.where(counts > 0, mean, otherwise.double()).to(otherwise.dtype)
