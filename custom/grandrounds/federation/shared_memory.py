"""Messages between processes of one machine: tensors in shared memory, the rest through a pipe."""

from __future__ import annotations

import io
import mmap
import os
import pickle
from collections.abc import Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 64


class _Pickler(pickle.Pickler):
    """Leaves the bytes of dense tensors out; they are in ``buffers``, in order.

    The callback is no method of the pickler: in a cycle the buffers would wait for Python's collector, which crashes when
    it clears memoryviews of each other.
    """

    def __init__(self, stream: io.BytesIO) -> None:
        self.buffers: list[pickle.PickleBuffer] = []
        super().__init__(stream, pickle.HIGHEST_PROTOCOL, buffer_callback=self.buffers.append)

    def reducer_override(self, value: Any) -> Any:
        """The pickler's hook."""
        if not isinstance(value, Tensor) or value.layout != torch.strided or not value.numel():
            return NotImplemented
        flat = value.detach().cpu().contiguous().view(-1).view(torch.uint8)
        return _tensor, (pickle.PickleBuffer(flat.numpy().data), value.dtype, tuple(value.shape))


def _tensor(content: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.frombuffer(content, dtype=dtype).reshape(shape)


def send(connection: Connection, receiver: int, value: Any) -> None:
    """Send a value whose tensors are copied to memory that both processes see.

    Args:
        connection: a two-way pipe.
        receiver: its process.
        value: anything that can be pickled.

    Raises:
        OSError: if the other end is closed.
    """
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    pickler.dump(value)
    buffers = [buffer.raw() for buffer in pickler.buffers]
    sizes = [buffer.nbytes for buffer in buffers]
    connection.send_bytes(pickle.dumps((sizes, stream.getvalue()), pickle.HIGHEST_PROTOCOL))
    if not sizes:
        return
    # Without a name it ends with the last process that has it, however that ends.
    memory = os.memfd_create("grandrounds")
    try:
        os.ftruncate(memory, _offsets(sizes)[-1])
        with mmap.mmap(memory, 0) as mapped:
            for start, buffer in zip(_offsets(sizes), buffers, strict=False):
                mapped[start : start + buffer.nbytes] = buffer
        reduction.send_handle(connection, memory, receiver)
    finally:
        os.close(memory)


def receive(connection: Connection) -> Any:
    """Wait for a value. Its tensors are this process's own: what it writes to them does not reach the sender.

    Raises:
        EOFError: if the other end is closed.
        OSError: if it is closed in the middle of a message.
    """
    sizes, content = pickle.loads(connection.recv_bytes())
    if not sizes:
        return pickle.loads(content)
    memory = reduction.recv_handle(connection)
    try:
        mapped = memoryview(mmap.mmap(memory, 0, access=mmap.ACCESS_COPY))
    finally:
        os.close(memory)
    buffers = [mapped[start : start + size] for start, size in zip(_offsets(sizes), sizes, strict=False)]
    return pickle.loads(content, buffers=buffers)


def _offsets(sizes: Sequence[int]) -> list[int]:
    """Where each part starts, and where the last one ends; aligned, as tensors of wide types need."""
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
    return offsets
