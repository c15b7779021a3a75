"""Local training, evaluation and BatchNorm policy: the same for every method, and knowing none."""
