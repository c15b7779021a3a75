"""Random streams: what is drawn depends on (purpose, numbers) alone, and the mixing never changes unnoticed."""

import numpy as np
import pytest
import torch

from fedmpi import seeds


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("cohort", 0, 1), 8902284715823796542),
        (("batches", 7, 3, 19), 8337996625697803502),
        (("a",), 1702698405120146464),
        (("a", -1), 7046022180591158198),
    ],
)
def test_mixing_is_frozen(words: tuple[str, ...], expected: int) -> None:
    """Golden values: another mixing gives every saved run and every published number other bits."""
    assert seeds.mix(*words) == expected


def test_generators_are_frozen() -> None:
    """The draws, too: numpy promises PCG64's stream and torch's CPU generator is a Mersenne twister."""
    drawn = seeds.numpy_generator("cohort:train", 0, 1).integers(1000, size=5)
    assert drawn.tolist() == [490, 258, 685, 27, 126]
    drawn = torch.randint(1000, (5,), generator=seeds.torch_generator("batches", 0, 1, 2))
    assert drawn.tolist() == [66, 693, 316, 502, 9]


def test_a_mix_fits_63_bits_and_uses_them() -> None:
    mixes = [seeds.mix("bits", number) for number in range(200)]
    assert all(0 <= mixed < 2**63 for mixed in mixes)
    # 200 fair coins for each bit: one that never falls has a chance of 2^-199.
    assert np.bitwise_or.reduce(np.array(mixes, dtype=np.int64)) == 2**63 - 1


def test_purposes_and_numbers_are_told_apart() -> None:
    """All of these words differ; so must their seeds (a chance collision would have odds of 10^-13)."""
    purposes = ("cohort:train", "cohort:small", "batches", "tier", "init", "restat", "partition")
    words = {(purpose, seed, *rest) for purpose in purposes for seed in range(4) for rest in ((), (0,), (1, 0), (0, 1))}
    words |= {("batches", 1, 23), ("batches", 12, 3), ("batches", 123), ("batches", 1, 2, 3)}
    assert len({seeds.mix(*word) for word in words}) == len(words)


def test_numpy_and_python_numbers_are_the_same() -> None:
    """A client's number may come out of an array: it must not change the stream."""
    for number in (np.int64(5), np.uint8(5), torch.tensor(5)):
        assert seeds.mix("batches", number) == seeds.mix("batches", 5)
