"""Local training, evaluation and BatchNorm policy: the same for every method, and knowing none."""

from fedmpi.lazy import exports

__getattr__ = exports(
    __name__,
    {
        "Buffers": "flat",
        "FlatNet": "flat",
        "LocalTrainer": "local",
        "MaskedCrossEntropy": "local",
        "TrainOutcome": "local",
        "global_generator": "determinism",
        "make_deterministic": "determinism",
        "test_nets": "evaluate",
        "EvaluationPlan": "evaluate",
        "TierScore": "evaluate",
        "normalizes_single_values": "bn",
        "num_statistics": "bn",
    },
)
