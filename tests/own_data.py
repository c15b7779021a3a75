"""Data sets and partitions as a user may bring them, and files of a user's own."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from fedmpi.data.dataset import DataInfo, DataOptions, Dataset

MLP = "no data set"


def arrays_of(kind: str) -> dict[str, np.ndarray]:
    """30 training and 12 test examples of three classes."""
    shapes = {"pictures": (42, 6, 5, 3), "grey": (42, 6, 5), "vectors": (42, 7), "tokens": (42, 9)}
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256 if kind in ("pictures", "grey") else 11, shapes[kind])
    x[0] = x[0] // 11 * 11 + 10 if kind == "tokens" else x[0]
    x = x.astype({"vectors": np.float32, "tokens": np.int64}.get(kind, np.uint8))
    y = np.arange(42) % 3
    return {"train_x": x[:30], "train_y": y[:30], "test_x": x[30:], "test_y": y[30:]}


def far() -> dict[str, np.ndarray]:
    """Vectors of which one feature is far from 0."""
    arrays = arrays_of("vectors")
    for part in ("train_x", "test_x"):
        arrays[part][:, 1] = -2e6
    return arrays


def save_npz(folder: Path, **arrays: Any) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "mine.npz"
    np.savez(path, **arrays)
    return path


def folder_of(root: Path, parts: dict[str, dict[str, int]]) -> Path:
    """Pictures 5 wide and 6 high; the first pixel of picture i of class c is (i, 10, 20)."""
    for part, classes in parts.items():
        for name, count in classes.items():
            place = root / part / name
            place.mkdir(parents=True)
            for number in range(count):
                picture = Image.new("RGB", (5, 6), (30, 40, 50))
                picture.putpixel((0, 0), (number, 10, 20))
                picture.save(place / f"{number}.png")
    return root


def blobs(
    num: int = 60, spread: float = 0.1, form: Literal["flat", "high"] = "flat", centres: tuple[float, ...] = (0.0, 1.0)
) -> dict[str, np.ndarray]:
    """Points around centres."""
    blobs.calls += 1
    y = np.arange(num) % len(centres)
    noise = np.random.default_rng(0).standard_normal((num, 4))
    x = (np.asarray(centres)[y][:, None] + spread * noise).astype(np.float32)
    cut = num * 2 // 3
    return {"train_x": x[:cut], "train_y": y[:cut], "test_x": x[cut:], "test_y": y[cut:]}


blobs.calls = 0


class Squares(DataOptions):
    name: str = "squares"
    """Grey squares."""
    side: int = 4

    def info(self) -> DataInfo:
        return DataInfo("image", (1, self.side, self.side), 2, 20, 10)

    def read(self) -> Dataset:
        images, labels = np.zeros((20, self.side, self.side, 1), np.uint8), np.arange(20) % 2
        return Dataset(images, labels, images[:10], labels[:10])


def free(
    labels: np.ndarray,
    num_clients: int,
    seed: int,
    order: Any = sorted,
    share: float | None = None,
    sizes: list[int] | None = None,
) -> Any:
    """A default that YAML cannot hold; a number and a list that may be None."""
    assert order is sorted and share in (None, 0.5) and (sizes == [2, 3]) == (share == 0.5)
    return np.array_split(np.arange(len(labels) if share is None else int(share * len(labels))), num_clients)


def shadowing(read: int = 1) -> None: ...


def no_dict() -> list[int]:
    return [1]


def ragged() -> dict[str, list[list[int]]]:
    return {"train_x": [[1], [2, 3]]}


def failing(by: int = 0) -> float:
    return 1 / by


def rows(labels: np.ndarray, num_clients: int, seed: int, skip: int = 0) -> list[np.ndarray]:
    """Rows of examples."""
    return np.array_split(np.arange(skip, len(labels)), num_clients)


def of_groups(labels: np.ndarray, num_clients: int, seed: int, groups: np.ndarray) -> list[np.ndarray]:
    """A group for each client."""
    return [np.flatnonzero(groups == client) for client in range(num_clients)]


def wrong(labels: np.ndarray, num_clients: int, seed: int, how: str = "") -> Any:
    """Every mistake there is."""
    right: list[Any] = np.array_split(np.arange(len(labels)), num_clients)
    if how == "raise":
        raise ValueError("no way")
    return {
        "few": right[:-1],
        "empty": [*right[:-1], []],
        "floats": [part.astype(float) for part in right],
        "outside": [part + 1 for part in right],
        "twice": [*right[:-1], right[0]],
        "number": 3,
    }[how]


def unseeded(labels: np.ndarray, num_clients: int) -> None: ...
