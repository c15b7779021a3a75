"""The gradient of a whole batch as a CUDA graph: recorded once for each net, then replayed.

A step launches some hundred kernels, one by one from Python; a graph is launched once. Recorded are the batch, forward
and backward pass. All that follows stays as it is: a method's correction, clipping and the optimizer, whose learning
rate would be recorded as a number. A graph reads and writes the addresses it was recorded with: parameters and
gradients lie in buffers that stay (`flat`), the data are resident, and each step copies its draws, each client its
mask into tensors made here. A last, smaller batch is computed without a graph.

Nothing is taken on trust: before the first round each graph replays another batch than the recorded one, and is used
only if loss and gradient have the bits that they have without it.

Source: "CUDA Graphs" in PyTorch's notes on CUDA semantics; whole-network capture, one pool for all graphs. Graphs may
share it in any order because nothing of a replay is read later but what lies outside it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from fedmpi import seeds
from fedmpi.data.batches import Draws
from fedmpi.learning.determinism import generator_states, global_generator
from fedmpi.learning.local import LocalTrainer, MaskedCrossEntropy, plain_step
from fedmpi.learning.twice import initial_values
from fedmpi.tensors import bytes_of

_WARM_UPS = 3
"""As many as in PyTorch's notes; cuBLAS takes its workspace and cuDNN chooses its kernels."""

DRAWS = "the net draws random numbers in training"
OTHER_BITS = "a replay gives other bits"
_LINE_END = "\n"

Record = Callable[[Callable[[], None]], Callable[[], None]]
"""Runs an action and returns what does the same again."""


class CudaGraphs:
    """Records graphs of one GPU; they share their memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream, self._pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    def __call__(self, action: Callable[[], None]) -> Callable[[], None]:
        """Raises RuntimeError where the action does what no graph can, such as asking the device for a number."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UPS):
                action()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        gc.collect()  # an autograd graph that is left from before the recording belongs to another stream
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            action()
        replay: Callable[[], None] = graph.replay
        return replay


class GradientReplay:
    """Replays the gradient of `trainer` in batches of its full size; a `local.Replay`."""

    def __init__(self, trainer: LocalTrainer, record: Record) -> None:
        """Records with any examples. Raises RuntimeError as `record` does."""
        data, self.batch_size = trainer.data, trainer.batch_size
        self._draws = data.draws(np.zeros(self.batch_size, np.int64), 1, torch.Generator(), shuffle=False)
        # Every client has a mask here: one of no class leaves all bits as they are.
        self._loss = MaskedCrossEntropy(torch.ones(data.info.num_classes, dtype=torch.bool, device=data.device))
        self._value = torch.zeros((), device=data.device)
        bounds = 0, self.batch_size

        def act() -> None:
            self._value.copy_(trainer.gradient(self._draws, 0, bounds, plain_step, self._loss))

        self._replay = record(act)

    def begin(self, loss: MaskedCrossEntropy) -> None:
        """Takes the classes that the client does not have."""
        assert self._loss.absent is not None
        if loss.absent is None:
            self._loss.absent.zero_()
        else:
            self._loss.absent.copy_(loss.absent)

    def gradient(self, draws: Draws, epoch: int, start: int) -> Tensor:
        """The loss, in a tensor that the next replay overwrites."""
        part = slice(start, start + self.batch_size)
        for kept, drawn in zip(_tensors(self._draws), _tensors(draws), strict=True):
            kept[0].copy_(drawn[epoch, part])
        self._replay()
        return self._value


def _tensors(draws: Draws) -> list[Tensor]:
    return [drawn for drawn in (draws.examples, draws.corners, draws.flips) if drawn is not None]


def replay_steps(trainers: Sequence[LocalTrainer], examples: np.ndarray, seed: int, record: Record) -> list[str]:
    """Lets the trainers replay what gives the same bits; for each why it does not, empty where it does.

    `examples` are numbers of training examples. Where one recording fails nothing is replayed, because torch leaves
    its generators in the state of recording. Parameters are zero afterwards, and the generators as they were.
    """
    reasons: list[str] = []
    for trainer in trainers:
        with global_generator(seeds.mix("replay", seed), trainer.data.device):
            try:
                reasons.append(_replay_step(trainer, examples, seed, record))
            except RuntimeError as error:
                first = error.__context__ or error  # ending a recording that has failed fails, too
                reasons.append(f"recording failed: {str(first).partition(_LINE_END)[0]}")
        trainer.net.clear()
        if trainer.replay is None and reasons[-1] not in (DRAWS, OTHER_BITS):
            for other in trainers:
                other.replay = None
            return [reasons[-1]] * len(trainers)
    return reasons


def _replay_step(trainer: LocalTrainer, examples: np.ndarray, seed: int, record: Record) -> str:
    """Sets `trainer.replay`, or says why not. Raises RuntimeError as `record` does."""
    net, data, size = trainer.net, trainer.data, trainer.batch_size
    net.module.train()
    net.reset_scale()
    initial_values(net, seed)
    draws = data.draws(np.resize(examples, 2 * size), 1, seeds.torch_generator("replay", seed))
    present = torch.arange(data.info.num_classes, device=data.device) % 2 == 0
    before = generator_states(data.device)
    bounds, loss = (size, 2 * size), MaskedCrossEntropy(present)
    expected = trainer.gradient(draws, 0, bounds, plain_step, loss), net.copy_of_gradients()
    if generator_states(data.device) != before:
        return DRAWS
    replay = GradientReplay(trainer, record)
    replay.begin(loss)
    found = replay.gradient(draws, 0, size), net.copy_of_gradients()
    if not all(torch.equal(bytes_of(one), bytes_of(two)) for one, two in zip(expected, found, strict=True)):
        return OTHER_BITS
    trainer.replay = replay
    return ""
