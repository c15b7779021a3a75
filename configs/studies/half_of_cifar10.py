"""Five of CIFAR-10's ten classes, and a vision transformer small enough for one core."""

from __future__ import annotations

from typing import ClassVar

from configs.studies.half_of_mnist import Half
from fedmpi.data.sets.cifar import Cifar10
from fedmpi.models.nets.vit import Vit
from fedmpi.models.options import ScaledNet


class HalfOfCifar10(Half, Cifar10):
    name: str = "half_of_cifar10"
    counts: ClassVar = {0: (25_000, 5_000), 5: (25_000, 5_000)}


class SmallVit(ScaledNet):
    make: ClassVar = Vit
    name: str = "small_vit"
    patch: int = 8
    embedding: int = 96
    depth: int = 4
    heads: int = 6
