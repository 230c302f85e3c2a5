"""Messages between a job's process and its training child: a header of JSON and a body of bytes, both with their lengths.

Nothing is unpickled. This module needs no library, so that the child can raise its walls before it imports any.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from typing import Any

from grandrounds.errors import MessageError

LENGTHS = struct.Struct("<IQ")
LARGEST_HEADER, LARGEST_BODY = 64 << 20, 4 << 30
POLL_SECONDS = 0.2


class Frames:
    """One end of the connection.

    Args:
        end: of a connected pair of sockets.
        check: is called several times a second while this end waits, and raises what ends the waiting.
    """

    def __init__(self, end: socket.socket, check: Callable[[], None] = lambda: None) -> None:
        self._end, self.check = end, check
        self._sending = threading.Lock()

    def send(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        """Send a message; threads may send at once.

        Raises:
            TypeError: if the header is no JSON.
            OSError: if the other end is closed.
        """
        text = json.dumps(header).encode()
        with self._sending:
            for part in (LENGTHS.pack(len(text), len(body)) + text, body):
                rest = memoryview(part)
                while rest:
                    self._await(write=True)
                    rest = rest[self._end.send(rest[: 1 << 20]) :]

    def receive(self) -> tuple[dict[str, Any], bytearray]:
        """Wait for a message.

        Raises:
            EOFError: if the other end is closed.
            MessageError: if it is larger than allowed, or its header no JSON object.
        """
        header, body = LENGTHS.unpack(self._read(LENGTHS.size))
        if header > LARGEST_HEADER or body > LARGEST_BODY:
            raise MessageError(
                f"a message between processes has {header} and {body} bytes, more than {LARGEST_HEADER} and {LARGEST_BODY}"
            )
        try:
            content = json.loads(self._read(header))
        except (ValueError, RecursionError) as error:
            raise MessageError(f"a message between processes is no JSON: {error}") from error
        if not isinstance(content, dict):
            raise MessageError(f"a message between processes must be an object, got {type(content).__name__}")
        return content, self._read(body)

    def close(self) -> None:
        """Close this end; the other one sees it."""
        self._end.close()

    def _read(self, count: int) -> bytearray:
        content = bytearray()
        while len(content) < count:  # grows with what comes: a length is a claim
            self._await(write=False)
            came = self._end.recv(min(count - len(content), 1 << 22))
            if not came:
                raise EOFError("the other end is closed")
            content += came
        return content

    def _await(self, write: bool) -> None:
        waiting = select.poll()
        waiting.register(self._end, select.POLLOUT if write else select.POLLIN)
        while not waiting.poll(1000 * POLL_SECONDS):
            self.check()
        self.check()
