"""LSTMs for texts: an embedding, a stack of LSTM layers, and a linear layer on its last output.

`lstm_imdb`: Niu, Prakash, Kundu, Lee, Avestimehr, "Federated learning of large models at the edge
via principal sub-model training" (PriSM), arXiv:2208.13141, Table 6: 920,385 parameters at 1,001
words and two classes.

`lstm_char`: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-efficient learning of deep
networks from decentralized data", arXiv:1602.05629, section 3, as LEAF (arXiv:1812.01097) has it:
which symbol follows. At V symbols 265 V + 798,720 parameters, 2,048 more than with one bias a gate, as
TensorFlow has it (820,522 at 90 symbols). McMahan et al. print 866,578: that is one bias, 258 symbols,
and peepholes, which torch's LSTM does not have.

Initialisation: torch's default.
"""

import warnings
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from fedmpi.models.options import Inputs, ScaledNet
from fedmpi.models.width import Width

EMBEDDING = 64
CHAR_EMBEDDING = 8
HIDDEN = 256
LAYERS = 2

State = tuple[Tensor, Tensor]


class Lstm(nn.LSTM):
    """torch's LSTM, batch first, for weights that lie in a buffer of the caller and must stay there."""

    def flatten_parameters(self) -> None:
        """Does nothing: on CUDA torch would move the weights into a buffer of its own, which nobody else trains."""

    def forward(self, x: Tensor) -> tuple[Tensor, State]:  # type: ignore[override]  # takes no states
        """Maps (B, length, inputs) to (B, length, hidden) and the last states."""
        if x.is_meta or is_in_torch_dispatch_mode():
            return self._shapes(x)
        with warnings.catch_warnings():
            # cuDNN copies weights that do not lie as it would lay them, and says so.
            warnings.filterwarnings("ignore", message="RNN module weights")
            return super().forward(x)

    def _shapes(self, x: Tensor) -> tuple[Tensor, State]:
        """Returns the products of all steps at once, for those who only count (fedmpi/costs.py): torch takes each
        alone."""
        states = x.new_empty(self.num_layers, len(x), self.hidden_size)
        for from_input, from_state, *_ in self.all_weights:
            outputs = x.new_empty(*x.shape[:2], self.hidden_size)
            gates = F.linear(x, from_input) + F.linear(outputs, from_state)
            x = gates[..., : self.hidden_size]
        return x, (states, states)


class CharLstm(nn.Module):
    """Tokens int64 (B, length) -> logits (B, num_classes) of what follows."""

    def __init__(self, info: Inputs, width: Width, embedding: int = CHAR_EMBEDDING, outputs: int = 0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(info.vocabulary_size, width.of(embedding))
        self.lstm = Lstm(width.of(embedding), width.of(HIDDEN), LAYERS, batch_first=True)
        self.fc = nn.Linear(width.of(HIDDEN), outputs or info.num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.embedding(tokens))
        return self.fc(outputs[:, -1])


class TextLstm(CharLstm):
    """Tokens int64 (B, length) -> logits (B, num_classes).

    Two classes have one output z and the logits (0, z), whose cross-entropy is the binary one of sigmoid(z).
    """

    def __init__(self, info: Inputs, width: Width) -> None:
        super().__init__(info, width, EMBEDDING, 1 if info.num_classes == 2 else info.num_classes)
        self.is_binary = info.num_classes == 2

    def forward(self, tokens: Tensor) -> Tensor:
        logits = super().forward(tokens)
        return torch.cat([torch.zeros_like(logits), logits], 1) if self.is_binary else logits


class LstmImdb(ScaledNet):
    """Embedding, two LSTM layers and a linear one: 920,385 parameters at 1,001 words and two classes."""

    kinds: ClassVar[tuple[str, ...]] = ("tokens",)
    leading_dense: ClassVar[int] = 0  # there is no stem
    make: ClassVar[type[nn.Module]] = TextLstm
    name: str = "lstm_imdb"
    """PriSM's LSTM for texts: an embedding, two LSTM layers, a linear one."""


class LstmChar(LstmImdb):
    """Embedding of 8, two LSTM layers of 256, a linear one: 822,570 parameters at 90 symbols."""

    make: ClassVar = CharLstm
    name: str = "lstm_char"
    """The character LSTM of McMahan et al. and LEAF: which symbol follows."""
