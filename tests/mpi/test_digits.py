"""Every configs/*_digits.yaml computes the same bits on one rank and on all ranks of this job, real data included."""

from pathlib import Path

import pytest
from fast import fast
from same_bits import Bits

from fedmpi.config.load import load

pytestmark = pytest.mark.mpi(min_size=5)

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
DIGITS = sorted(path for path in CONFIGS.glob("*_digits.yaml") if not path.stem.startswith("base"))
SHORT = ("rounds=2", "train.local_epochs=1", "output.progress=off", "output.tensorboard=false")
# What a run of two rounds needs to come to everything that the method does.
ALSO = {"fdnnc_bfirst_digits": ("method.switch_round=1",), "lgfedavg_digits": ("method.pretrain_rounds=1",)}


FAST = [path for path in DIGITS if path.stem in ("fedhm_digits", "lgfedavg_digits")]


@pytest.mark.parametrize("path", fast(*FAST, of=DIGITS), ids=lambda path: path.stem)
def test_one_rank_and_all_ranks(bits: Bits, path: Path) -> None:
    config = load(path, [*SHORT, *ALSO.get(path.stem, ())])
    bits.run(config)
    bits.check(bits.alone(config))
