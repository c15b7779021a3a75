"""Local training, evaluation and BatchNorm policy: the same for every method, and knowing none."""

from typing import TYPE_CHECKING

from fedmpi.lazy import exports

if TYPE_CHECKING:
    from fedmpi.learning.bn import normalizes_single_values, num_statistics
    from fedmpi.learning.determinism import global_generator, make_deterministic
    from fedmpi.learning.evaluate import EvaluationPlan, TierScore, test_nets
    from fedmpi.learning.flat import Buffers, FlatNet
    from fedmpi.learning.local import LocalTrainer, MaskedCrossEntropy, TrainOutcome, outcome_of, whole_batches
    from fedmpi.learning.personal import ClientScores, count_correct
    from fedmpi.learning.twice import check_nets, refuse_changing_buffers

__all__ = [
    "Buffers",
    "ClientScores",
    "EvaluationPlan",
    "FlatNet",
    "LocalTrainer",
    "MaskedCrossEntropy",
    "TierScore",
    "TrainOutcome",
    "check_nets",
    "count_correct",
    "global_generator",
    "make_deterministic",
    "normalizes_single_values",
    "num_statistics",
    "outcome_of",
    "refuse_changing_buffers",
    "test_nets",
    "whole_batches",
]

__getattr__ = exports(
    __name__,
    {
        "Buffers": "flat",
        "FlatNet": "flat",
        "LocalTrainer": "local",
        "MaskedCrossEntropy": "local",
        "TrainOutcome": "local",
        "outcome_of": "local",
        "whole_batches": "local",
        "check_nets": "twice",
        "refuse_changing_buffers": "twice",
        "ClientScores": "personal",
        "count_correct": "personal",
        "global_generator": "determinism",
        "make_deterministic": "determinism",
        "test_nets": "evaluate",
        "EvaluationPlan": "evaluate",
        "TierScore": "evaluate",
        "normalizes_single_values": "bn",
        "num_statistics": "bn",
    },
)
