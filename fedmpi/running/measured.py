"""What `fedmpi plan --measure` measures (`running/measure.py`): trials of clients and nets, times and sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class ClientTrial:
    """A client of one tier in one phase: seconds of each part, of so many `steps` on so many `examples`."""

    tier: str
    phase: str
    steps: int
    examples: int
    """Counted once for each of `train.local_epochs`."""
    training_s: float
    """Of these steps alone."""
    other_s: float
    """What a client takes once: its net, its upload, what it remembers, and what its method does beside the steps."""
    adding_s: float
    """The server's work on the upload."""
    is_estimated: bool = False
    """By the MACs of another tier: the time was up."""


@dataclass(frozen=True)
class NetsTrial:
    """The tests of all nets together, as the run has them: seconds for each example of the test set and of BatchNorm's
    re-estimation, 0 for what the run does not do.
    """

    test_s: float = 0.0
    restat_s: float = 0.0


@dataclass(frozen=True)
class NetTrial:
    """The test of a client's own net: seconds for each of its examples, of training and test."""

    net: str
    test_s: float
    is_estimated: bool = False
    """By the MACs of another tier: the time was up."""


@dataclass(frozen=True)
class Measured:
    """What one process has measured. Seconds; bytes; peaks are of the process's resident memory."""

    device: str
    threads: int
    clients: tuple[ClientTrial, ...]
    nets: NetsTrial
    personal: tuple[NetTrial, ...]
    """By tier, where clients are tested with their own nets."""
    publishing_s: float
    updating_s: float
    """The means of a phase, the method's update and refresh."""
    saving_s: float
    checkpoint_bytes: int
    memory_bytes: int
    """What a client keeps between rounds, in a file; 0 where it keeps nothing."""
    rank_0_peak_bytes: int
    """After publishing, before a client is trained, plus the exact bytes of a round's sums and its new state."""
    worker_peak_bytes: int
    """After tests of all nets and the largest tier's training, without the server's state."""
    gpu_peak_bytes: int


def told_apart(few: ClientTrial, many: ClientTrial) -> ClientTrial:
    """`many`, whose training is divided into its steps and what a client does once, by a trial with fewer steps: by
    this line through both, the seconds of another number of steps are predicted. With as many steps it stays as it is.
    """
    if many.steps <= few.steps:
        return many
    steps_s = many.steps * (many.training_s - few.training_s) / (many.steps - few.steps)
    steps_s = min(max(0.0, steps_s), many.training_s)
    return replace(many, training_s=steps_s, other_s=many.other_s + many.training_s - steps_s)
