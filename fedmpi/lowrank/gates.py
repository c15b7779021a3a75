"""LSTMs, gate by gate: every gate's matrix becomes a layer of its own that can be factorized.

Niu et al., PriSM, arXiv:2208.13141, Remark 3.1 (low rank of linear layers and LSTMs). torch's LSTM
keeps the four gates of a matrix in one tensor; here each is a linear layer inside the LSTM, and
before every forward pass a hook puts them together again and torch's own LSTM runs. Whatever takes
a gate's place must have a `weight`. As in the authors' code, this saves parameters and messages
but no computation.
"""

from typing import Any

import torch
from torch import nn

from fedmpi.tensors import linear_of

GATES = ("i", "f", "g", "o")
"""In the order in which torch stacks them: input, forget, cell and output gate."""
MATRICES = ("weight_ih_", "weight_hh_")


def open_lstms(net: nn.Module) -> nn.Module:
    """Gives every LSTM of `net` its gates as linear layers, in place; returns `net`.

    `<lstm>.weight_ih_l0` (4 n, m) becomes `<lstm>.ih_l0.i.weight` (n, m), then `f`, `g`, `o`; so do the
    recurrent ones. Biases stay where they are.
    """
    for lstm in [module for module in net.modules() if isinstance(module, nn.LSTM)]:
        for name, matrix in [item for item in lstm.named_parameters(recurse=False) if item[0].startswith(MATRICES)]:
            del lstm._parameters[name]
            gates = matrix.chunk(len(GATES))
            layers = nn.ModuleDict(dict(zip(GATES, map(linear_of, gates), strict=True)))
            lstm.add_module(name.removeprefix("weight_"), layers)
        lstm.register_forward_pre_hook(_stack_gates)
        lstm.register_forward_hook(_forget_stacks, always_call=True)
    return net


def _stacked(gates: nn.Module) -> torch.Tensor:
    # Of whatever stands in a gate's place: its `weight` may be computed.
    weights: list[Any] = [gate.weight for gate in gates.children()]
    return torch.cat(weights)


def _stack_gates(lstm: nn.Module, inputs: object) -> None:
    for name, gates in lstm.named_children():
        setattr(lstm, f"weight_{name}", _stacked(gates))


def _forget_stacks(lstm: nn.Module, inputs: object, outputs: object) -> None:
    """Results of a pass that has gradients: an LSTM that kept them could not be copied."""
    for name, _ in lstm.named_children():
        setattr(lstm, f"weight_{name}", None)
