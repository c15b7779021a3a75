"""The fused LSTM cell that torch asks of an accelerator and the CPU does not have: its formulas, by hand.

Gates in torch's order (input, forget, cell, output), each a quarter of (batch, 4 x hidden). The CPU's own LSTM adds up
in another order, so bits differ and numbers agree to rounding.
"""

import torch
from torch import Tensor


def _cell(from_input: Tensor, from_hidden: Tensor, cell: Tensor, *biases: Tensor | None) -> tuple[Tensor, ...]:
    """The hidden state, the cell state, and what the backward pass needs: the gates."""
    gates = sum((bias for bias in biases if bias is not None), from_input + from_hidden)
    keep, forget, new, out = gates.chunk(4, 1)
    keep, forget, new, out = keep.sigmoid(), forget.sigmoid(), new.tanh(), out.sigmoid()
    after = forget * cell + keep * new
    return out * after.tanh(), after, torch.cat([keep, forget, new, out], 1)


def _backward(
    d_hidden: Tensor | None, d_after: Tensor | None, cell: Tensor, after: Tensor, gates: Tensor, has_bias: bool
) -> tuple[Tensor, ...]:
    """Gradients of the gates before their functions, of the cell state, and of the bias."""
    keep, forget, new, out = gates.chunk(4, 1)
    d_hidden = torch.zeros_like(after) if d_hidden is None else d_hidden
    through = d_hidden * out * (1 - after.tanh() ** 2)
    total = through if d_after is None else through + d_after
    d_gates = [
        total * new * keep * (1 - keep),
        total * cell * forget * (1 - forget),
        total * keep * (1 - new**2),
        d_hidden * after.tanh() * out * (1 - out),
    ]
    gradient = torch.cat(d_gates, 1)
    return gradient, total * forget, gradient.sum(0) if has_bias else gradient.new_empty(0)


FORMULAS = {"_thnn_fused_lstm_cell": _cell, "_thnn_fused_lstm_cell_backward_impl": _backward}
