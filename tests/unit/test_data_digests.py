"""The digest of every data set and of every partition: what a change of the readers must leave as it is.

`golden/data_digests.json` holds them. A key that is missing there is written, and the test fails once.
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data_fixtures import SHARED_DATA, RunData, idx_bytes, leaf, tff, write_cifar100, write_leaf
from fast import fast
from own_data import arrays_of, folder_of, save_npz
from small_data import dataset, options_in

from fedmpi import registry
from fedmpi.data import command as data_command
from fedmpi.data import files
from fedmpi.data.dataset import Dataset, digest_of, load_data
from fedmpi.data.partition import make_partition
from fedmpi.data.personal import hold_out, personal_tests
from fedmpi.data.sets import cifar, mnist
from fedmpi.data.sets.digits import Digits

MakeSet = Callable[[Path, pytest.MonkeyPatch], Dataset]
KNOWN = Path(__file__).parents[1] / "golden" / "data_digests.json"


def check(key: str, digest: str) -> None:
    known = json.loads(KNOWN.read_text()) if KNOWN.exists() else {}
    if key not in known:
        KNOWN.write_text(json.dumps(dict(sorted({**known, key: digest}.items())), indent=0) + "\n")
        pytest.fail(f"{KNOWN} had no {key}; now it has {digest}")
    assert digest == known[key]


def options_of(name: str, **values: object) -> registry.Any:
    return registry.options("data", name).model_validate({"name": name, **values})


RAW = "hapt/HAPT_RawData.tar.xz"
REAL = {
    "mnist": ("mnist", False, ()),
    "qmnist": ("mnist", False, ()),
    "har": (RAW, True, ()),
    "imdb": ("imdb/aclImdb_labelled.tar.xz", True, ()),
    "imdb three_quarters": ("imdb/aclImdb_labelled.tar.xz", True, ("data.split=three_quarters", "data.length=100")),
    "tinyimagenet": ("tiny-imagenet-subset10/tiny-imagenet-200-subset10.zip", True, ("data.classes=10",)),
    "shakespeare": ("tinyshakespeare", True, ()),
}


@pytest.mark.parametrize("key", fast(of=REAL, slow=[key for key in REAL if key not in ("qmnist", "imdb")]))
def test_real_sets(key: str, run_data: RunData, tmp_path: Path) -> None:
    place, is_prepared, words = REAL[key]
    name, root = key.split()[0], SHARED_DATA / place
    if not root.exists():
        pytest.skip(f"real {key} needs {root}")
    if is_prepared:
        code, _, error = run_data("prepare", name, *words, f"data.root={tmp_path}", "--from", root)
        assert code == 0, error
        root = tmp_path
    check(key, load_data(data_command.data_options(name, [*words, f"data.root={root}"])).digest)


@pytest.mark.slow
def test_real_cifar10(cifar10_root: str) -> None:
    check("cifar10", load_data(options_of("cifar10", root=cifar10_root)).digest)


def small_cifar100(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    md5s = write_cifar100(folder / "cifar-100-python", 500, 100)
    monkeypatch.setattr(cifar.Cifar100, "train", {"train": md5s["train"]})
    monkeypatch.setattr(cifar.Cifar100, "test", {"test": md5s["test"]})
    return options_of("cifar100", root=str(folder)).read()


def small_emnist(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    monkeypatch.setitem(mnist.SPLITS, "letters", (26, 52, 26))
    generator = np.random.default_rng(0)
    for part, count in (("train", 52), ("test", 26)):
        images = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 26 + 1).astype(np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            (folder / f"emnist-letters-{part}-{kind}-ubyte").write_bytes(idx_bytes(array))
    return load_data(options_of("emnist", split="letters", root=str(folder)))


def small_shakespeare(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    text = "the quick brown fox jumps over the lazy dog. " * 4
    users = {
        name: {"x": [text[i : i + 8] for i in range(first, 90)], "y": [text[i + 8] for i in range(first, 90)]}
        for first, name in enumerate(("B_ROMEO", "A_JULIA", "C_NURSE"))
    }
    write_leaf(folder / "train" / "a.json", users)
    write_leaf(folder / "test" / "a.json", {name: users[name] for name in ("B_ROMEO", "C_NURSE")})
    monkeypatch.setattr("fedmpi.data.sets.leaf.STRIDE", 3)
    monkeypatch.setattr("fedmpi.data.sets.leaf.LENGTH", 8)
    return options_of("shakespeare", form="leaf").prepare(folder)


def synthetic(**values: object) -> MakeSet:
    return lambda *_: load_data(options_of("synthetic", **values))


def npz(kind: str, **values: object) -> MakeSet:
    return lambda folder, _: load_data(options_of("npz", path=str(save_npz(folder, **arrays_of(kind))), **values))


def divided_npz(folder: Path, _: pytest.MonkeyPatch) -> Dataset:
    given = arrays_of("pictures")
    x, y = (np.concatenate([given[f"train_{key}"], given[f"test_{key}"]]) for key in "xy")
    path = save_npz(folder, x=x, y=y, groups=np.arange(42) % 5)
    return load_data(options_of("npz", path=str(path), test_share=0.25))


def image_folder(parts: dict[str, dict[str, int]], **values: object) -> MakeSet:
    return lambda folder, _: load_data(options_of("image_folder", path=str(folder_of(folder, parts)), **values))


SMALL: dict[str, MakeSet] = {
    "digits": lambda *_: load_data(Digits()),
    "digits subset": lambda *_: load_data(Digits(num_train=200, num_test=50)),
    "synthetic": synthetic(),
    "synthetic grey": synthetic(shape=(1, 9, 7), classes=3, num_train=40, num_test=11),
    "cifar100": small_cifar100,
    "emnist": small_emnist,
    "femnist leaf": lambda folder, _: options_of("femnist").prepare(leaf(folder)),
    "femnist tff": lambda folder, _: options_of("femnist").prepare(tff(folder)),
    "shakespeare leaf": small_shakespeare,
    **{f"npz {kind}": npz(kind) for kind in ("pictures", "grey", "vectors", "tokens")},
    "npz subset": npz("vectors", num_train=12, num_test=6),
    "npz divided": divided_npz,
    "image_folder": image_folder({"train": {"dog": 3, "cat": 4}, "test": {"cat": 2, "dog": 1}}),
    "image_folder divided": image_folder({"": {"a": 8, "b": 8}}, test_share=0.25, grey=True, size=(4, 3)),
}


@pytest.mark.parametrize("key", SMALL)
def test_small_sets(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(key, digest_of(SMALL[key](tmp_path, monkeypatch).arrays))


PARTITIONS = {
    "iid": {"shuffle": True},
    "dirichlet_feddf": {},
    "dirichlet": {},
    "class_dirichlet": {"alpha": 5.0},
    "dirichlet_equal": {},
    "shards": {},
    "lottery": {"samples": 12, "balance": 0.5},
    "natural": {"groups_per_client": 2},
    "quantity_skew": {},
}


@pytest.mark.parametrize("num_clients", [10, 25])
@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("key", PARTITIONS)
def test_partitions(key: str, seed: int, num_clients: int) -> None:
    digits = load_data(Digits())
    groups, test_groups = (np.arange(len(y)) * 7 % 67 for y in (digits.train_y, digits.test_y))
    ours = replace(digits, groups=groups, test_groups=test_groups)
    options = registry.options("partition", key).model_validate({"name": key, **PARTITIONS[key]})
    partition = make_partition(options, ours.train_y, num_clients, seed, ours.groups)
    arrays = {"indices": partition.indices, "offsets": partition.offsets}
    for how in ("matching", "classes", "groups"):
        tests = personal_tests(how, partition, ours, seed, 6)
        arrays |= {f"{how} indices": tests.indices, f"{how} offsets": tests.offsets}
    validated, training, validation = hold_out(ours, partition, 0.2, seed)
    arrays |= {"training": training.indices, "validation": validation.offsets}
    check(f"{key}, seed {seed}, {num_clients} clients", digest_of({**arrays, **validated.arrays}))


OURS = digest_of(dataset().arrays)


def test_every_change_gives_another_digest() -> None:
    ours = dataset()
    changed = (
        replace(ours, train_x=ours.train_x + 0.5),
        replace(ours, train_y=ours.train_y[::-1]),
        replace(ours, groups=np.roll(ours.groups, 1)),
        replace(ours, test_groups=None),
        replace(ours, train_x=ours.train_x.astype(np.float64)),
    )
    assert OURS not in [digest_of(other.arrays) for other in changed]


def test_memory_layout_byte_order_and_chunks_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the order in which the arrays are named."""
    ours = dataset()
    x, y = np.asfortranarray(ours.train_x).astype(">f4"), np.repeat(ours.train_y, 2)[::2]
    other = replace(ours, train_x=x, train_y=y)
    assert digest_of(other.arrays) == OURS == digest_of(dict(reversed(ours.arrays.items())))
    monkeypatch.setattr("fedmpi.data.dataset._CHUNK_BYTES", 500)
    assert digest_of(other.arrays) == OURS


def test_a_prepared_file_knows_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is computed once, when the file is written; a copy with other times elsewhere has the same."""
    here, there = options_in(tmp_path / "here"), options_in(tmp_path / "there")
    files.save(here, dataset())
    there.path.parent.mkdir()
    shutil.copy(here.path, there.path)
    os.utime(there.path, (0, 0))
    monkeypatch.setattr("fedmpi.data.dataset.digest_of", lambda arrays: pytest.fail("computed again"))
    assert load_data(here).digest == load_data(there).digest == OURS
