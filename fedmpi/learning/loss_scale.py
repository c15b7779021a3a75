"""Loss scaling: what `train.precision: fp16` needs beside autocast.

P. Micikevicius et al.: Mixed Precision Training, ICLR 2018, arXiv:1710.03740, section 3.2. Gradients of activations
below 6e-8 would be zero in half precision. So the gradient of a net's outputs is multiplied by a scale, and that of
each parameter, in float32, divided by it: methods, clipping and the optimizer see the gradient itself. A step whose
gradient is not finite is left out and halves the scale; 2,000 others in a row double it.

Differences from torch.amp.GradScaler: every client begins with `INITIAL` again, so that its bits depend on no
other one; and nothing waits for the device. So a scale that is too large leaves out the first steps of each client, and
all of one that has few. Such a client has not diverged: its loss is finite, its net is the one that it was given, and
another `train.lr` would not help. It contributes as a client without steps does; the run warns and its records count.
"""

import torch
from torch import Tensor, nn

INITIAL = 1024.0
"""What a loss is first multiplied by."""
NUM_GOOD_STEPS = 2000
"""In a row, after which the scale is doubled, as GradScaler does."""


class LossScale:
    """The scale of the client that trains; `initial` is what each begins with."""

    def __init__(self, initial: float, device: torch.device | str) -> None:
        self._initial = initial
        self._scale = torch.zeros((), device=device)
        self._num_good = torch.zeros((), device=device)
        self.num_left_out = torch.zeros((), device=device)
        """How many steps of this client were left out: 0-dim float32, on the device."""
        self.reset()

    def reset(self) -> None:
        """Resets the scale to where each client begins."""
        self._scale.fill_(self._initial)
        self._num_good.zero_()
        self.num_left_out.zero_()

    def attach(self, module: nn.Module) -> None:
        """Scales gradients behind the outputs of this module and unscales them before its parameters."""
        module.register_forward_hook(lambda _, inputs, outputs: self.outputs(outputs))
        for parameter in module.parameters():
            parameter.register_hook(lambda gradient: gradient / self._scale)

    def outputs(self, outputs: Tensor) -> Tensor:
        """Outputs of a net as float32, whose gradient is scaled before it becomes half precision."""
        scaled = outputs.float().view_as(outputs)
        if scaled.requires_grad:
            scaled.register_hook(lambda gradient: gradient * self._scale)
        return scaled

    def settle(self, gradient: Tensor) -> Tensor:
        """Zeroes the gradient of the whole net (float32, in place) after a backward pass if it is not finite.

        Returns 1 if so, else 0 (0-dim float32, on the device), and takes the scale of the next step."""
        is_bad = ~torch.isfinite(gradient).all()
        gradient.masked_fill_(is_bad, 0.0)
        self._num_good.add_(1).masked_fill_(is_bad, 0.0)
        is_grown = self._num_good == NUM_GOOD_STEPS
        self._num_good.masked_fill_(is_grown, 0.0)
        self._scale.mul_(torch.where(is_bad, 0.5, torch.where(is_grown, 2.0, 1.0)))
        left_out = is_bad.float()
        self.num_left_out.add_(left_out)
        return left_out
