"""What rank 0 receives under `gather`: the receive of the next part of the uploads is posted before it adds this one.

MPI then moves the next part while rank 0 adds, as far as the network does that without the CPU; the others need not
wait for rank 0 to come back. All ranks begin the same gathers in the same order, however far ahead rank 0 receives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor

from fedmpi.federation.assignment import PART_BYTES, Task, parts_of
from fedmpi.mpi.communicator import Communicator, Request
from fedmpi.tensors import Layout

Tasks = Sequence[Task | None]
"""A wave or a part of one: the task of each rank, None where it has none."""


class Receiver:
    """The gathers of these waves, a part at a time. `layouts` has client -> layout of its message; `new_buffer` makes
    host memory of so many bytes.
    """

    def __init__(
        self,
        comm: Communicator,
        waves: Sequence[Tasks],
        layouts: Mapping[int, Layout],
        new_buffer: Callable[[int], Tensor],
    ) -> None:
        self._comm, self._layouts = comm, layouts
        waves_of_parts = [parts_of(wave, self._sizes(wave), PART_BYTES) for wave in waves]
        received = [sum(self._sizes(part)) for parts in waves_of_parts for part in parts]
        self._waves, self._num_left = iter(waves_of_parts), len(received)
        self.is_ahead = is_ahead(comm.size, len(received))
        room = max(received, default=0) if comm.is_root else 0
        self._buffers = deque(new_buffer(room) for _ in range(1 + self.is_ahead))
        self._under_way: deque[tuple[Request, Tasks, Tensor]] = deque()

    def _sizes(self, tasks: Tasks) -> list[int]:
        return [self._layouts[task.client].num_bytes if task else 0 for task in tasks]

    def start_wave(self, send: Tensor) -> Iterator[Request]:
        """Every rank starts the gathers of the next wave's parts, of what is first in `send`. After each of them it
        takes what has `arrived`: with that, a buffer is free for the next.
        """
        for part in next(self._waves):
            buffer = self._buffers[0]
            self._buffers.rotate()
            request = self._comm.start_gather(send, self._sizes(part), buffer)
            self._num_left -= 1
            if self._comm.is_root:
                self._under_way.append((request, part, buffer))
            yield request

    def arrived(self) -> Iterator[tuple[Task, Tensor]]:
        """Rank 0: waits for what was started, message by message. The newest part stays under way if another is to
        come. Elsewhere nothing arrives.
        """
        while len(self._under_way) > (self.is_ahead and self._num_left > 0):
            request, part, buffer = self._under_way.popleft()
            request.wait()
            for task, num_bytes in zip(part, self._sizes(part), strict=True):
                if task is not None:
                    yield task, buffer[:num_bytes]
                    buffer = buffer[num_bytes:]

    @property
    def num_awaited(self) -> int:
        """Clients of the part that stays under way."""
        return sum(task is not None for _, part, _ in self._under_way for task in part)


def is_ahead(num_ranks: int, num_parts: int) -> bool:
    """Whether a part is received while another is added, which takes a second buffer."""
    return num_ranks > 1 and num_parts > 1
