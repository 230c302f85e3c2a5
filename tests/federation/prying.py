"""An executor whose training tries to leave its process; jobs name it by its path."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import multiprocessing
import os
import pickle
import resource
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.frames import LENGTHS
from grandrounds.federation.site.store import SiteStore
from grandrounds.methods.supervised.executor import SupervisedExecutor
from grandrounds.protocol.messages import Payload, Result


def _parent() -> socket.socket:
    """The child's connection to its parent."""
    for entry in range(3, 64):
        try:
            if os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                return socket.socket(fileno=entry)
        except OSError:
            continue
    raise AssertionError("the child has no connection")


def _send(header: bytes, body: bytes = b"") -> None:
    _parent().sendall(LENGTHS.pack(len(header), len(body)) + header + body)


def _append(target: str) -> None:
    with Path(target).open("a") as stream:
        stream.write("{}\n")


def _call(function: str, *arguments: Any) -> None:
    """Call a function of the C library that returns a negative number where it fails."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, function)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _connect(target: str) -> None:
    socket.create_connection(("127.0.0.1", int(target)), 5)


def _load(target: str) -> None:
    """Processes of the child's own, with shared work and locks."""
    total = sum(float(batch.sum()) for batch in DataLoader(torch.ones(32, 3), batch_size=4, num_workers=2))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert total == 96 == sum(pool.map(abs, range(-10, 1))) + 41


def _fork_by(number: int, *arguments: Any) -> None:
    """Start a process by a system call; it ends at once."""
    library = ctypes.CDLL(None, use_errno=True)
    process = library.syscall(number, *arguments)
    if process == 0:
        os._exit(0)
    if process < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _clone3() -> None:
    with pytest.raises(OSError) as refused:
        _fork_by(435, ctypes.create_string_buffer(64), 64)
    assert refused.value.errno == errno.ENOSYS


def _join_group() -> None:
    os.setpgid(0, os.getpgid(os.getppid()))


def _all(targets: str) -> None:
    """Try all that must be refused, each with its target; what is not is named in the last lines of the child."""
    assert targets
    allowed = []
    for name, _, target in (line.partition("=") for line in targets.splitlines()):
        try:
            ATTEMPTS[name](target)
            allowed.append(name)
        except PermissionError:
            pass
        except Exception as error:
            allowed.append(f"{name} ({type(error).__name__})")
    if allowed:
        os.write(2, f"not refused: {', '.join(allowed)}\n".encode())
        os._exit(7)
    raise PermissionError


RESULT = {"kind": "result", "kinds": {}, "metrics": {}, "samples": 1, "facts": {}, "tensors": {}}
ATTEMPTS = {
    "socket": lambda target: socket.socket(),
    "netlink": lambda target: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
    "unix": lambda target: socket.socket(socket.AF_UNIX),
    "datagrams": lambda target: socket.socketpair(type=socket.SOCK_DGRAM),
    "connect": _connect,
    "io_uring": lambda target: _call("syscall", 425, 8, ctypes.create_string_buffer(120)),
    "kill": lambda target: os.kill(os.getppid(), signal.SIGTERM),
    "job": lambda target: os.kill(int(target), 0),
    "group": lambda target: os.kill(-os.getppid(), 0),
    "own group": lambda target: os.kill(0, 0),
    "join": lambda target: _join_group(),
    "signals": lambda target: fcntl.fcntl(0, 8, os.getppid()),
    "namespace": lambda target: _fork_by(56, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0),
    "clone3": lambda target: _clone3(),
    "memory": lambda target: Path("/dev/shm", "walls").write_text("x"),
    "escape": lambda target: subprocess.Popen(["sh", "-c", f"sleep 300 # {target}"], start_new_session=True),
    "limits": lambda target: resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE),
    "own limits": lambda target: resource.prlimit(0, resource.RLIMIT_NOFILE),
    "mode": lambda target: os.chmod(target, 0o666),
    "owner": lambda target: os.chown(target, os.getuid(), os.getgid()),
    "attribute": lambda target: os.setxattr(target, "user.note", b"x"),
    "semaphores": lambda target: _call("semget", 0, 1, 0o600),  # private, so that none is left over
    "append": _append,
    "create": lambda target: Path(target).with_name("new").write_text("x"),
    "truncate": lambda target: os.truncate(target, 0),
    "read": lambda target: Path(target).read_bytes(),
    "link": lambda target: os.symlink(target, "link"),
    "pickle": lambda target: _send(pickle.dumps(os.getpid)),
    "list": lambda target: _send(b"[1]"),
    "oversized": lambda target: _parent().sendall(LENGTHS.pack(2**31, 2**60)),
    "no tensors": lambda target: _send(json.dumps({**RESULT, "kinds": {"update": "model_update"}}).encode(), b"pickle"),
    "text": lambda target: _send(json.dumps({**RESULT, "metrics": {"loss": "patient 4711"}}).encode()),
    "ask": lambda target: _send(json.dumps({"kind": "question", "method": "leaves", "arguments": [{}]}).encode()),
    "exit": lambda target: os.system("echo last words >&2") or os._exit(7),
    "hold": lambda target: None,
    "loader": _load,
    "nothing": lambda target: None,
    "all": _all,
}


class PryingExecutor(SupervisedExecutor):
    """FedAvg that tries something before it trains.

    Args:
        attempt: a name of :data:`ATTEMPTS`.
        target: a path, a port or a process; for ``all``, lines ATTEMPT=TARGET.
        options: of FedAvg.
    """

    def __init__(self, *, attempt: str, target: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.attempt, self.target = attempt, target

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Try, then train."""
        ATTEMPTS[self.attempt](self.target)
        return super().train(payload, context)

    def on_result_released(self, left: Result, payload: Payload, store: SiteStore) -> None:
        """Keep the parent waiting, if that is to be tried."""
        if self.attempt == "hold":
            time.sleep(600)
