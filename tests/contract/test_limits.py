"""Methods in the limit where they are federated averaging: FedAvg's bits, which another setting does not have."""

from pathlib import Path

import pytest
from by_hand import after
from fast import fast

from fedmpi.store.hdf5 import digest_of

UNEVEN, TWO = "partition.name=class_dirichlet", "rounds=2"
VIT = ("model.name=vit_small", "model.width=0.05")
PLAIN = ("train.momentum=0", "train.weight_decay=0")
LR, HF = ("method.beta=lr", "train.weight_decay=0.1"), "method.variant=HF"
NEVER = ("method.accuracy_threshold=1", "method.validation_share=0")
DELTA, COVERAGE = "method.aggregation=delta", "method.coverage=1"
HOLDERS, NO_LASSO = "method.intersection=holders", "method.group_lasso=0"
BETA, DYNAMIC, UNIFORM = "method.beta=0.05", "clients.tier_assignment=dynamic", "method.weighting=uniform"
LIMITS = [
    ("fedprox", (UNEVEN, TWO), (), ("method.mu=0",), ("method.mu=0.1",)),
    ("fedprox", (UNEVEN, TWO, "method.weighting=samples"), (), ("method.mu=0",), ("method.mu=0.1",)),
    ("fedhm", (TWO,), (), ("method.rank_ratio=[1]",), ("method.rank_ratio=[0.5]",)),
    ("fedhm", (TWO, UNEVEN, DYNAMIC), (UNIFORM,), ("method.rank_ratio=[1]",), ("method.tau=1",)),
    ("fedhm", (TWO, "train.precision=bf16"), (), ("method.rank_ratio=[1]",), ("method.rank_ratio=[0.5]",)),
    ("fedhm", (TWO,), (), ("method.rank_ratio=[1]", DELTA), ("method.rank_ratio=[0.5]", DELTA)),
    ("fedhm", (TWO,), (), ("method.rank_ratio=[1]", DELTA, COVERAGE), ("method.rank_ratio=[1,0.5]", DELTA, COVERAGE)),
    ("fedhm", (TWO, *VIT), (), ("method.rank_ratio=[1]",), ("method.rank_ratio=[0.5]",)),
    ("heterofl", (TWO, "partition.name=iid"), (), ("method.widths=[1]",), ("method.widths=[0.5]",)),
    ("fjord", (TWO, UNEVEN), ("method.weighting=samples",), ("method.widths=[1]",), ("method.widths=[0.5]",)),
    ("lgfedavg", (), (), ("method.global_layers=7",), ("method.global_layers=6",)),
    ("lgfedavg", (), (), ("method.global_layers=99",), ("method.global_layers=1",)),
    ("perfedavg", (), PLAIN, ("method.alpha=0", *LR), ("method.alpha=0.01", *LR)),
    ("perfedavg", (), PLAIN, ("method.alpha=0", *LR, HF), ("method.alpha=0.01", *LR, HF)),
    ("perfedavg", (), (*PLAIN, "train.schedule.milestones=[]"), ("method.alpha=0", BETA), ("method.alpha=0.01", BETA)),
    ("hermes", (TWO,), (), (*NEVER, NO_LASSO), NEVER),
    ("hermes", (TWO,), (), (*NEVER, NO_LASSO, HOLDERS), (*NEVER, HOLDERS)),
    ("scaffold", ("rounds=1",), (), (), ("rounds=2",)),
]
"""A method; what both runs have; what FedAvg has beside; the method's limit, and a setting that is none. Constant beta
has no schedule, the net of lgfedavg has seven layers, and SCAFFOLD's control variates are zero in the first round."""


@pytest.mark.parametrize(("method", "common", "theirs", "ours", "other"), fast(LIMITS[0], LIMITS[2], of=LIMITS))
def test_a_limit_is_fedavg(
    tmp_path: Path, method: str, common: tuple[str, ...], theirs: tuple[str, ...], ours: tuple[str, ...], other: tuple
) -> None:
    fedavg = after(tmp_path / "fedavg", "method.name=fedavg", *common, *theirs).server
    limit = after(tmp_path / "limit", f"method.name={method}", *common, *ours)
    moved = after(tmp_path / "moved", f"method.name={method}", *common, *other)
    digests = [digest_of({name: left.server[name] for name in fedavg}) for left in (limit, moved)]
    assert digests[0] == digest_of(fedavg) != digests[1]
    assert method != "lgfedavg" or not limit.memories
