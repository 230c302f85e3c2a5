"""A bad link on one machine: a TCP proxy whose bandwidth, latency and loss can be changed at any time, and that can be cut.

It carries to one port of this machine, or is an HTTP proxy that takes every CONNECT there, whatever host it names: then
kits keep the server's real name, and nothing leaves this machine.

All connections share one line per direction: bytes take their time on it one after the other, and arrive a latency later.
Above TCP a lost packet is a pause until it has been sent again, so it blocks the line for Linux's minimum retransmission
timeout (RFC 6298). This is a simple upper bound, because most losses are repaired sooner.
"""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import suppress
from dataclasses import dataclass

PACKET = 1460
RETRANSMISSION = 0.2
MAX_STAY = 0.05
"""Maximum seconds of a chunk on the line, so that a change of the line takes effect soon."""
LARGEST_CHUNK, WAITING_CHUNKS = 1 << 16, 64


@dataclass(frozen=True)
class Quality:
    """How bad a line is.

    Attributes:
        megabits: per second; None: no limit.
        latency: milliseconds from one end to the other.
        loss: probability that a packet is lost.
        jitter: milliseconds by which a chunk is late at most; one of another connection may overtake it.
    """

    megabits: float | None = None
    latency: float = 0.0
    loss: float = 0.0
    jitter: float = 0.0

    @property
    def bytes_per_second(self) -> float:
        """The bandwidth."""
        return float("inf") if self.megabits is None else self.megabits * 1e6 / 8

    @property
    def chunk(self) -> int:
        """Bytes that are put on the line at once."""
        return int(min(LARGEST_CHUNK, max(PACKET, self.bytes_per_second * MAX_STAY)))


class _Line:
    """One direction of the link."""

    def __init__(self, seed: int) -> None:
        self.quality = Quality()
        self.carried = 0
        self._free = 0.0
        self._draw = random.Random(seed)

    def arrival(self, size: int, now: float) -> float:
        """The time at which so many bytes arrive."""
        quality = self.quality
        packets = -(-size // PACKET)
        lost = sum(self._draw.random() < quality.loss for _ in range(packets)) if quality.loss else 0
        self._free = max(self._free, now) + size / quality.bytes_per_second + lost * RETRANSMISSION
        self.carried += size
        return self._free + (quality.latency + self._draw.uniform(0, quality.jitter)) / 1000


class SlowLink:
    """A proxy before a port of this machine, in a thread of its own.

    Args:
        target: the port.
        seed: of the lost packets.
        connect: whether connections begin with the CONNECT of an HTTP proxy.
    """

    def __init__(self, target: int, seed: int = 0, connect: bool = False) -> None:
        self.port = 0
        self._target, self._connect = target, connect
        self._whole, self._open = True, set[asyncio.StreamWriter]()
        self._lines = (_Line(seed), _Line(seed + 1))
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Listen at a free port, which is ``port`` afterwards."""
        self._thread.start()
        self._listening.wait()

    def set(self, quality: Quality) -> None:
        """Change both directions."""
        for line in self._lines:
            line.quality = quality

    def cut(self) -> None:
        """Break all connections, and take no other until the link is mended."""
        self._whole = False
        self._loop.call_soon_threadsafe(self._abort)

    def mend(self) -> None:
        """Take connections again."""
        self._whole = True

    @property
    def address(self) -> str:
        """Of the HTTP proxy."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def carried(self) -> tuple[int, int]:
        """Bytes so far: to the target, and back."""
        return self._lines[0].carried, self._lines[1].carried

    def stop(self) -> None:
        """Close all connections."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._connected, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        server.close()

    def _abort(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._connect:
                await reader.readuntil(b"\r\n\r\n")
            if not self._whole:
                raise ConnectionAbortedError
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.close()
            return
        if self._connect:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        ends = {writer, back}
        self._open |= ends
        try:
            await asyncio.gather(self._carry(reader, back, self._lines[0]), self._carry(there, writer, self._lines[1]))
        finally:
            self._open -= ends

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: _Line) -> None:
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(WAITING_CHUNKS)
        delivering = asyncio.create_task(self._deliver(waiting, writer))
        with suppress(OSError):
            while not delivering.done() and (chunk := await reader.read(line.quality.chunk)):
                arrival = line.arrival(len(chunk), self._loop.time())
                await waiting.put((arrival, chunk))
                # The sender waits for the line; otherwise it would never see full buffers.
                await asyncio.sleep(max(0.0, arrival - line.quality.latency / 1000 - self._loop.time()))
        await waiting.put((0.0, b""))
        await delivering

    async def _deliver(self, waiting: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while (item := await waiting.get())[1]:
                await asyncio.sleep(max(0.0, item[0] - self._loop.time()))
                writer.write(item[1])
                await writer.drain()
        writer.close()
