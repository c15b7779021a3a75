"""Several nets that answer together."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Ensemble(nn.ModuleList):
    """Nets of the same inputs and classes; (B, ...) -> (B, num_classes), the mean of their logits.

    Their parameters have the names of the nets' own, after the number of the net: `0.fc.weight`.
    """

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([net(x) for net in self]).mean(0)
