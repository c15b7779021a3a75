"""The options of the image data sets that are read or prepared from the files as distributed."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedmpi.config.schema import Count, Folder, Section, free
from fedmpi.data.options import DataInfo
from fedmpi.data.prepared_options import PreparedOptions

# Mean and standard deviation of MNIST's training pixels / 255, to the digits that everybody uses.
MNIST_MEAN, MNIST_STD = (0.1307,), (0.3081,)

# Classes, training and test images of each of NIST's six divisions.
EMNIST_SPLITS = {
    "balanced": (47, 112_800, 18_800),
    "byclass": (62, 697_932, 116_323),
    "bymerge": (47, 697_932, 116_323),
    "digits": (10, 240_000, 40_000),
    "letters": (26, 124_800, 20_800),
    "mnist": (10, 60_000, 10_000),
}


class Mnist(Section):
    """Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-Based Learning Applied to Document Recognition, 1998."""

    name: str = "mnist"
    """70,000 handwritten digits, 28x28 grey, idx files as distributed."""
    root: Folder = free("~/data")
    """The folder that holds MNIST/raw, or the folder with the files itself."""

    def info(self) -> DataInfo:
        return DataInfo("image", (1, 28, 28), 10, 60_000, 10_000, MNIST_MEAN, MNIST_STD)


class Qmnist(Section):
    """C. Yadav and L. Bottou, Cold Case: The Lost MNIST Digits, NeurIPS 2019.

    The images are MNIST's; QMNIST's label files say who wrote each of them. The 297 writers of the
    test images are not among the 539 of the training images.
    """

    name: str = "qmnist"
    """MNIST with the writers of its digits, as QMNIST's labels know them: 539 train, 297 test."""
    root: Folder = free("~/data")
    """The folder that holds MNIST/raw and QMNIST/raw, or the folder with all their files."""

    def info(self) -> DataInfo:
        return DataInfo("image", (1, 28, 28), 10, 60_000, 10_000, MNIST_MEAN, MNIST_STD, num_groups=539)


class Emnist(Section):
    """G. Cohen, S. Afshar, J. Tapson, A. van Schaik, EMNIST: an extension of MNIST to handwritten letters, 2017.

    Its pixels are scaled as MNIST's are, with the same two numbers for every split.
    """

    name: str = "emnist"
    """Up to 814,255 handwritten characters in up to 62 classes, NIST's idx files."""
    root: Folder = free("~/data")
    """The folder that holds EMNIST/raw or gzip, or the folder with the files itself."""
    split: Literal["balanced", "byclass", "bymerge", "digits", "letters", "mnist"] = "byclass"
    """Which of NIST's divisions: `byclass` has all 62 classes, `bymerge` and `balanced` 47, `letters` 26, others 10."""

    def info(self) -> DataInfo:
        num_classes, num_train, num_test = EMNIST_SPLITS[self.split]
        return DataInfo("image", (1, 28, 28), num_classes, num_train, num_test, MNIST_MEAN, MNIST_STD)


class Femnist(PreparedOptions):
    """S. Caldas et al., LEAF: A Benchmark for Federated Settings, arXiv:1812.01097; labels 0-9, A-Z, a-z.

    Two sources: the HDF5 files of TensorFlow Federated (3,400 writers; its documentation of
    `simulation.datasets.emnist` has the default counts) and the JSON files that LEAF's scripts
    write. Ink is dark on paper that is 1, and pixels are used as they are, as in both sources.
    """

    counts: ClassVar[tuple[str, ...]] = ("num_train", "num_test", "num_groups", "test_writers")
    name: str = "femnist"
    """Handwritten characters in 62 classes by writer: LEAF's or TensorFlow Federated's files."""
    writers: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Take only the first so many writers, in the order of their names; 0 takes all."""
    test_examples: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Take only so many of the test images, drawn at random, the same for every seed; 0 takes all."""
    test_writers: Literal["same", "others"] = "same"
    """Whether the test images are the training writers' (LEAF's `-t sample`) or of other people (`-t user`)."""
    num_train: Count = 671_585
    """Training images expected; the default is that of TensorFlow Federated's files."""
    num_test: Count = 77_483
    """Test images expected; the default is that of TensorFlow Federated's files."""
    num_groups: Count = 3400
    """Writers expected; the default is that of TensorFlow Federated's files."""

    def info(self) -> DataInfo:
        return DataInfo(
            "image",
            (1, 28, 28),
            62,
            self.num_train,
            self.num_test,
            num_groups=self.num_groups,
            shares_groups=self.test_writers == "same",
        )


class TinyImagenet(PreparedOptions):
    """Stanford's CS231n, Tiny ImageNet: 64x64 pictures of ImageNet; its validation part is the test part here.

    The test part as distributed has no labels. Normalization and crops as in FedHM's code.
    """

    name: str = "tinyimagenet"
    """110,000 colour pictures 64x64 in 200 classes, prepared from the JPEG files."""
    classes: Annotated[int, Field(ge=2, le=200)] = 200
    """Take only the first so many classes of wnids.txt (500 training and 50 test images each)."""

    def info(self) -> DataInfo:
        half = (0.5,) * 3
        counts = (500 * self.classes, 50 * self.classes)
        return DataInfo("image", (3, 64, 64), self.classes, *counts, mean=half, std=half, crop_padding=4, flip=True)
