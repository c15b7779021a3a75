"""EMNIST: handwritten characters in NIST's idx files.

Counts of https://www.nist.gov/itl/products-and-services/emnist-dataset. The files within the archive have no published
checksums: their types, lengths and labels are checked.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedmpi.data.dataset import DataInfo, Dataset
from fedmpi.data.files import File, Source
from fedmpi.data.sets.mnist import MEAN, SIDE, STD, IdxOptions

FILE = File(
    "EMNIST/raw/gzip.zip",
    ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
    "md5:58c8d27c78d21e728a6bc7b3cc06412e",
    561_753_746,
    unpack_to="EMNIST/raw",
    contents=("gzip", "emnist-byclass-train-images-idx3-ubyte.gz"),
)
# Classes, training and test images of each of NIST's six divisions.
SPLITS = {
    "balanced": (47, 112_800, 18_800),
    "byclass": (62, 697_932, 116_323),
    "bymerge": (47, 697_932, 116_323),
    "digits": (10, 240_000, 40_000),
    "letters": (26, 124_800, 20_800),
    "mnist": (10, 60_000, 10_000),
}


class Emnist(IdxOptions):
    """G. Cohen, S. Afshar, J. Tapson, A. van Schaik, EMNIST: an extension of MNIST to handwritten letters, 2017.

    Its pixels are scaled as MNIST's are, with the same two numbers for every split.
    """

    source = Source(
        "https://www.nist.gov/itl/products-and-services/emnist-dataset",
        "public domain (NIST); cite Cohen et al., EMNIST, 2017",
        (FILE,),
    )
    folders = ("EMNIST/raw", "EMNIST/raw/gzip", "gzip")
    name: str = "emnist"
    """Up to 814,255 handwritten characters in up to 62 classes, NIST's idx files."""
    split: Literal["balanced", "byclass", "bymerge", "digits", "letters", "mnist"] = "byclass"
    """Which of NIST's divisions: `byclass` has all 62 classes, `bymerge` and `balanced` 47, `letters` 26, others 10."""

    def info(self) -> DataInfo:
        num_classes, num_train, num_test = SPLITS[self.split]
        return DataInfo("image", (1, SIDE, SIDE), num_classes, num_train, num_test, MEAN, STD)

    def read(self) -> Dataset:
        """Returns images uint8 (N, 28, 28, 1), white on black, upright: the files store columns first."""
        _, num_train, num_test = SPLITS[self.split]
        first_label = 1 if self.split == "letters" else 0
        train_x, train_y = self.part(f"emnist-{self.split}-train", num_train)
        test_x, test_y = self.part(f"emnist-{self.split}-test", num_test)
        train_x, test_x = (np.ascontiguousarray(x.transpose(0, 2, 1))[..., None] for x in (train_x, test_x))
        return Dataset(train_x, train_y - first_label, test_x, test_y - first_label)
