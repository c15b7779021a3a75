"""Where mini-batches begin and end; pure, for training, plans and costs."""

from __future__ import annotations


def batch_bounds(num_examples: int, batch_size: int) -> list[tuple[int, int]]:
    """(start, stop) of each mini-batch of `num_examples` examples, in order; [] for no examples.

    The last, smaller batch is kept; a single left-over example joins the batch before it, because
    batch statistics of one vector have no variance.
    """
    starts = list(range(0, num_examples, batch_size))
    if batch_size > 1 and len(starts) > 1 and num_examples - starts[-1] == 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], num_examples], strict=False))
