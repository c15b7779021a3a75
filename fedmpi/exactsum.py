"""Sums whose bits do not depend on the order of their terms.

A weighted mean over clients must come out the same for any number of ranks and any exchange, so it cannot be a
floating-point sum. Each term w * x becomes the whole number rint(w * x * 2^k) in 64 bits; integer addition is
associative, and the one division is done once, at the end.

k of a tensor is 61 - ceil(log2(W * B)) with W the planned weight of the cohort and B the bound on |x|: the sum stays
below 2^61, and a term is off by at most 2^-(k+1), its rounding to a whole number, and float64's own rounding of w * x.
With B = 64 (the least that is used) and 10 clients of weight 1, 2^-(k+1) is 2.2e-16, far below float32's spacing.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor

from fedmpi.tensors import Layout, Region, Spec, region_on

BOUND_FACTOR = 64.0
"""A result with an entry this many times as large as the tensor's largest published one, or 1, has diverged."""

_BITS = 61
# Numbers of a sum that are worked on at once: their float32 products take 0.5 MB and stay in a core's L2 cache. Smaller
# blocks cost more calls (an AMD EPYC took 1.6 ns a number, 1.7 with half of these, 2.1 with a quarter).
_BLOCK = 131072


def bound_of(magnitude: float) -> float:
    """Returns B of a tensor whose largest published entry is `magnitude`; at least 64, so that zeros can grow."""
    return BOUND_FACTOR * max(1.0, magnitude)


def scale_exponent(total_weight: float, bound: float) -> int:
    """Returns k, how many binary places a term keeps."""
    return _BITS - math.ceil(math.log2(total_weight * bound))


class ExactSum:
    """Running sums of named tensors in int64, all in one flat buffer that MPI can add.

    `specs` has the shape of each, and the memory format of the sums: adding is fast for terms of the same. `bounds` has
    B for each name (the caller has checked every term against it), `total_weight` the sum of all planned weights.
    """

    def __init__(
        self,
        specs: Mapping[str, Spec],
        bounds: Mapping[str, float],
        total_weight: float,
        device: torch.device | str = "cpu",
    ) -> None:
        layout = Layout.of({name: replace(spec, dtype=torch.int64) for name, spec in specs.items()})
        self.buffer = layout.new_buffer(device).view(torch.int64)
        self._sums = layout.views(self.buffer.view(torch.uint8))
        self._exponents = {name: scale_exponent(total_weight, bounds[name]) for name in specs}
        self._block = _BLOCK if self.buffer.device.type == "cpu" else max(len(self.buffer), 1)
        self._products: dict[torch.dtype, Tensor] = {}

    def add(self, name: str, value: Tensor, weight: float, region: Region | None = None) -> None:
        """Adds weight * value to the sum called `name`. Raises ValueError unless the shapes agree."""
        if name not in self._sums:
            raise ValueError(f"{name}, which has no sum")
        whole = self._sums[name]
        region = None if region is None else region_on(region, whole.device)
        held = whole if region is None else whole[region]
        if value.shape != held.shape:
            raise ValueError(f"{name} as {list(value.shape)}, expected {list(held.shape)}")
        # A float32 of weight 1 stays one, half as long: times 2^k it is exact, or so small that it rounds to 0 anyway.
        exact_in = torch.float32 if weight == 1 and value.dtype == torch.float32 else torch.float64
        scale = math.ldexp(weight, self._exponents[name])
        for total, part in _blocks(held, value, self._block):
            self._add_block(total, part, exact_in, scale)
        if not (region is None or _is_block(region)):
            whole[region] = held  # of an index or a mask `held` is a copy

    def _add_block(self, total: Tensor, value: Tensor, exact_in: torch.dtype, scale: float) -> None:
        buffer = self._products.get(exact_in)
        if buffer is None:
            buffer = self._products[exact_in] = torch.empty(self._block, dtype=exact_in, device=total.device)
        product = buffer[: value.numel()].view(value.shape)
        is_alike = value.dtype == exact_in and value.device == product.device
        if total.device.type == "cpu":  # numpy adds int64 in a third of torch's time
            source = value if is_alike else product.copy_(value)
            units = total.numpy()
            terms = product.numpy()
            np.multiply(source.detach().numpy(), scale, out=terms)
            np.rint(terms, out=terms)
            np.add(units, terms, out=units, dtype=np.int64, casting="unsafe")
        else:
            scaled = torch.mul(value, scale, out=product) if is_alike else product.copy_(value).mul_(scale)
            total += scaled.round_().to(torch.int64)

    def mean(self, name: str, weight: float | Tensor, otherwise: Tensor) -> Tensor:
        """Returns the sum divided by `weight` (a number, or float64 of the sum's shape), in the dtype and memory format
        of `otherwise`, whose entry stays where the weight is 0.
        """
        value = self._sums[name].to(torch.float64)
        unit = math.ldexp(1.0, self._exponents[name])
        if isinstance(weight, Tensor):
            weight = weight.to(value.device)
            value = torch.where(weight > 0, value.div_(unit) / weight, otherwise.to(torch.float64))
        elif weight > 0:
            value /= unit * weight  # one pass: a power of two changes no digit
        else:
            return otherwise.clone()
        return torch.empty_like(otherwise).copy_(value)


def _is_block(region: Region) -> TypeGuard[tuple[slice, ...]]:
    """Returns whether the region is made of slices alone, so that indexing by it gives a view."""
    return isinstance(region, tuple) and all(isinstance(part, slice) for part in region)


def _blocks(total: Tensor, value: Tensor, most: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Cuts both alike into parts of at most `most` numbers, views whose axes lie in `total`'s order in memory."""
    strides = total.stride()
    order = sorted(range(total.dim()), key=lambda axis: -strides[axis])
    total = total.permute(order)
    value = value.permute(order)
    if total.is_contiguous() and value.is_contiguous():
        total = total.view(-1)
        value = value.view(-1)
    if total.numel() <= most:
        yield total, value
    elif rows := most * len(total) // total.numel():
        yield from zip(total.split(rows), value.split(rows), strict=True)
    else:
        for row, part in zip(total, value, strict=True):
            yield from _blocks(row, part, most)


class WeightSum:
    """The weights under each mean, rebuilt by the server from the plan: numbers, or per entry where regions differ.

    Memory does not grow with the cohort: regions made of slices (a tier's leading channels) are added up once for each
    distinct one, masks and index tensors as they come.
    """

    def __init__(self, num_terms: int) -> None:
        self._exponent = _BITS - math.ceil(math.log2(max(num_terms, 1)))
        self._whole = 0
        self._partial: dict[str, int] = {}
        self._blocks: dict[str, dict[object, tuple[Region, int]]] = {}
        self._entries: dict[str, Tensor] = {}

    def add(self, weight: float, regions: Mapping[str, tuple[tuple[int, ...], Region]]) -> None:
        """Adds a client of `weight` in (0, 1]; `regions` has (tensor shape, entries held) of what it holds in part."""
        units = round(math.ldexp(weight, self._exponent))
        self._whole += units
        for name, (shape, region) in regions.items():
            if name not in self._entries:
                self._entries[name] = torch.zeros(shape, dtype=torch.int64)
            self._partial[name] = self._partial.get(name, 0) + units
            if _is_block(region):
                blocks = self._blocks.setdefault(name, {})
                key = tuple((part.start, part.stop, part.step) for part in region)
                blocks[key] = region, blocks.get(key, (region, 0))[1] + units
            else:
                self._entries[name][region] += units

    def of(self, name: str) -> float | Tensor:
        """Returns the total weight of the tensor called `name`: a number, or float64 of its shape."""
        if name not in self._entries:
            return math.ldexp(self._whole, -self._exponent)
        held = self._entries[name] + (self._whole - self._partial[name])
        for region, units in self._blocks.get(name, {}).values():
            held[region] += units
        return held.to(torch.float64).mul_(math.ldexp(1.0, -self._exponent))

    def share(self, name: str) -> float | Tensor:
        """Returns the same as a share of all clients' weight: exactly 1 where all hold an entry, 0 where none does."""
        held = self.of(name)
        return held.div_(math.ldexp(self._whole, -self._exponent)) if isinstance(held, Tensor) else 1.0


class StatisticSum:
    """An exact sum of float tensors whose size is not known beforehand (BatchNorm statistics, losses).

    Four limbs: whole multiples of a coarse power of two, then remainders in multiples of ever finer ones. Holds |x| up
    to 2^96 to below 2^-70; what is larger, or no number, counts as 2^96, `LARGEST`.
    """

    LARGEST = 2.0**96
    _LIMBS = 4

    def __init__(self, num_values: int, num_terms: int) -> None:
        room = _BITS - math.ceil(math.log2(max(num_terms, 1)))
        self._places = [room * (limb + 1) - 96 for limb in range(self._LIMBS)]
        self.buffer = torch.zeros(self._LIMBS * num_values, dtype=torch.int64)

    def add(self, values: Tensor) -> None:
        """Adds one term, shape (num_values,)."""
        rest = torch.nan_to_num(values.to(torch.float64), nan=self.LARGEST).clamp_(-self.LARGEST, self.LARGEST)
        for limb, places in zip(self.buffer.view(self._LIMBS, -1), self._places, strict=True):
            units = torch.round(rest * math.ldexp(1.0, places))
            rest -= units * math.ldexp(1.0, -places)
            limb += units.to(torch.int64)

    def total(self) -> Tensor:
        """Returns the sum so far, float64 of shape (num_values,)."""
        limbs = self.buffer.view(self._LIMBS, -1).to(torch.float64)
        scales = torch.tensor([math.ldexp(1.0, -places) for places in self._places], dtype=torch.float64)
        return (limbs * scales[:, None]).sum(0)
