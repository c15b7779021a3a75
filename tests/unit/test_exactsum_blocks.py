"""The blocks in which exact sums are added, against the formula in one plain expression."""

import pytest
import torch

from fedmpi.exactsum import ExactSum
from fedmpi.tensors import Region, Spec


@pytest.mark.parametrize("weight", [1.0, 0.5, 0.8187307530779818])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    "region",
    [None, (slice(0, 40), slice(3, 60)), (slice(None), torch.arange(0, 64, 3))],
    ids=["all", "slices", "index"],
)
def test_blocks_add_what_the_formula_says(
    weight: float, dtype: torch.dtype, channels_last: bool, region: Region | None
) -> None:
    """rint(w x 2^k) in one plain expression, against the sum's blocks: of several rows, of parts of a long row, of
    values that lie in memory as the sum does, or otherwise.
    """
    generator = torch.Generator().manual_seed(10)
    for shape in ((48, 64, 5, 5), (1, 64, 40, 40)):
        exact = ExactSum({"a": Spec(shape, channels_last=channels_last)}, {"a": 64.0}, 10.0)
        held = torch.zeros(shape)[region or ()]
        exponents = torch.randint(-60, 7, held.shape, generator=generator)
        value = torch.ldexp(torch.rand(held.shape, generator=generator) * 2 - 1, exponents).to(dtype)
        expected = torch.zeros(shape, dtype=torch.int64)
        expected[region or ()] += 2 * (value.double() * (weight * 2.0**51)).round().long()
        exact.add("a", value, weight, region)
        exact.add("a", value.to(memory_format=torch.channels_last), weight, region)
        found = exact.buffer[: expected.numel()].view(shape)
        if channels_last:
            found = exact.buffer[: expected.numel()].view(shape[0], *shape[2:], shape[1]).permute(0, 3, 1, 2)
        assert torch.equal(found, expected) and expected.any()
