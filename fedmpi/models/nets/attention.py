"""Self-attention whose queries, keys, values and outputs come from four linear layers of its own.

torch's MultiheadAttention keeps the first three in one tensor and calls no layer at all. Here each is
a layer like any other, so that code which looks for linear layers (low rank, groups of layers, widths)
finds all four and may put something else in their place, which then really runs. Vaswani et al.,
"Attention is all you need", arXiv:1706.03762, 3.2.2.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from fedmpi.tensors import linear_of

INPUTS = ("query", "key", "value")
"""In the order in which torch stacks them."""


class Attention(nn.Module):
    """A `nn.MultiheadAttention`, batch first, that is asked for outputs alone.

    Head h has the rows h dim / num_heads and following of `query`, `key` and `value`, and those columns of `out`.
    """

    def __init__(self, dense: nn.MultiheadAttention) -> None:
        super().__init__()
        self.num_heads = dense.num_heads
        self.dropout = dense.dropout
        weights = dense.in_proj_weight.chunk(3)
        biases = dense.in_proj_bias.chunk(3)
        self.query, self.key, self.value = map(linear_of, weights, biases)
        self.out = linear_of(dense.out_proj.weight, dense.out_proj.bias)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, need_weights: bool = False) -> tuple[Tensor, None]:
        """Maps (B, T, dim) each to (B, T, dim), and None for the weights that nobody asked for."""
        mixed = F.scaled_dot_product_attention(
            self._heads(self.query(query)),
            self._heads(self.key(key)),
            self._heads(self.value(value)),
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.out(mixed.transpose(1, 2).flatten(2)), None

    def _heads(self, x: Tensor) -> Tensor:
        """Maps (B, T, dim) to (B, num_heads, T, dim / num_heads)."""
        return x.unflatten(2, (self.num_heads, -1)).transpose(1, 2)


def open_attention(net: nn.Module) -> nn.Module:
    """Puts an `Attention` of the same values in the place of torch's own throughout `net`; returns `net`.

    For nets that use it as torchvision's do: batch first, with biases, without masks.
    """
    for name, dense in [item for item in net.named_modules() if isinstance(item[1], nn.MultiheadAttention)]:
        net.set_submodule(name, Attention(dense))
    return net
