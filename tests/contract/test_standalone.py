"""Standalone: clients continue from their own models, the server's never changes, epochs by the factor, no bytes."""

from pathlib import Path

import pytest
from by_hand import Bench, numbers
from small_runs import run_alone, small_setup

from fedmpi.methods.standalone import Standalone, StandaloneOptions
from fedmpi.methods.values import ClientLoad, Contributions, Costs, Phase
from fedmpi.store import checkpoint
from fedmpi.store.run_dir import RunDir

ALONE = "method.name=standalone"


def test_two_rounds_by_hand() -> None:
    """f_0 = w^2 / 2 and f_1 = (w - 1)^2 / 2 from w = 1 with steps of 1/4, two a round.

    Client 0: 1, 3/4, 9/16; then 27/64, 81/256. Client 1 is where it wants to be. The server's stays 1.
    """
    options = StandaloneOptions(epochs_factor=2.0)
    two = Bench(Standalone, options, [[1.0], [1.0]], [0, 1], [[0], [1]])
    state = two.start(1.0)
    for round_number, expected in ((1, 9 / 16), (2, 81 / 256)):
        state = two.round(state, round_number)
        assert numbers(two.memories[0]) == [expected] and numbers(two.memories[1]) == [1.0]
        assert numbers(state) == [1.0]


@pytest.mark.parametrize(
    ("factor", "per_round", "local_epochs", "epochs"),
    [("auto", 4, 5, 10), ("auto", 3, 1, 3), ("1", 4, 5, 5), ("1.5", 4, 3, 4), ("0.1", 4, 3, 1)],
)
def test_epochs(tmp_path: Path, factor: str, per_round: int, local_epochs: int, epochs: int) -> None:
    """`auto` is 8 clients / per_round times the epochs (8 / 3 is 3); 4.5 goes to the even 4; at least one."""
    words = (f"method.epochs_factor={factor}", f"clients.per_round={per_round}", f"train.local_epochs={local_epochs}")
    method = small_setup(tmp_path, ALONE, *words).method
    assert method.training.local_epochs == epochs and method.count_training(ClientLoad(0, 7)).examples == 7 * epochs
    assert (method.tested(), method.costs(ClientLoad(0))) == ((), Costs(0, 0)), "nothing is exchanged"
    assert method.diagnostics({}, {}, Contributions(Phase(), 1, 0.1, [])) == {"local_epochs": epochs}


@pytest.mark.slow
@pytest.mark.parametrize(("every", "keep"), [(1, 2), (1, 1), (3, 2), (2, 3)])
def test_old_memories_go_with_the_last_checkpoint_that_names_them(tmp_path: Path, every: int, keep: int) -> None:
    """Nothing is left over; after a resume neither."""
    words = (ALONE, "clients.per_round=3", "evaluation.every=100")
    words += (f"output.checkpoint_every={every}", f"output.keep_checkpoints={keep}")
    for rounds, resume in ((9, False), (16, True)):
        run_alone(tmp_path, *words, f"rounds={rounds}", resume=resume)
        assert set(RunDir(tmp_path).memories()) == checkpoint.referenced(RunDir(tmp_path)) != set()
