"""The last check before the first round: every worker trains the same client twice (`twice.check_nets`)."""

from __future__ import annotations

from fedmpi.learning import twice
from fedmpi.mpi.together import together
from fedmpi.rounds.state import Setup


def check_nets(setup: Setup) -> tuple[str, ...]:
    """What to warn of, on every rank: workers that compute other bits than the first one.

    Raises `StartupError` on all ranks together for a net that keeps something from one client to the next.
    """

    def check() -> str:
        config = setup.config
        if not setup.trainers:
            return ""
        macs, examples = setup.macs, setup.partition.indices
        return twice.check_nets(setup.trainers, setup.method.net, macs, examples, config.seed, config.model.name)

    digests = setup.comm.allgather_text(together(setup.comm, check))
    first = digests[setup.workers[0]]
    others = [str(setup.comm.members[rank]) for rank in setup.workers if digests[rank] != first]
    if not others:
        return ()
    return (
        f"the same client trained on rank {setup.comm.members[setup.workers[0]]} and on rank {', '.join(others)} gives "
        "other bits, so results depend on which rank trains whom; use processors of one kind",
    )
