"""Options of the LSTMs for texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from fedmpi.models.options import Inputs, ScaledNet
from fedmpi.models.width import Width

if TYPE_CHECKING:
    from torch import nn


class LstmImdb(ScaledNet):
    """Embedding, two LSTM layers and a linear one: 920,385 parameters at 1,001 words and two classes."""

    kinds: ClassVar[tuple[str, ...]] = ("tokens",)
    name: str = "lstm_imdb"
    """PriSM's LSTM for texts: an embedding, two LSTM layers, a linear one."""

    @property
    def dense_layers(self) -> int:
        """There is no stem."""
        return 0

    def net(self, info: Inputs, width: Width) -> nn.Module:
        from fedmpi.models.nets import lstm

        return lstm.TextLstm(info.vocabulary_size, info.num_classes, width.times(self.width))


class LstmChar(LstmImdb):
    """Embedding of 8, two LSTM layers of 256, a linear one: 822,570 parameters at 90 symbols."""

    name: str = "lstm_char"
    """The character LSTM of McMahan et al. and LEAF: which symbol follows."""

    def net(self, info: Inputs, width: Width) -> nn.Module:
        from fedmpi.models.nets import lstm

        return lstm.CharLstm(info.vocabulary_size, info.num_classes, width.times(self.width))
