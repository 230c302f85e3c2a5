"""Walls around a process: no sockets, no other processes, and no files but those that it was given.

Linux's seccomp refuses system calls by a filter, and Landlock refuses files. A process sets both for itself, with no
special right; it cannot take them back, and all that it starts has them, too. What is refused is an error of permission.
See the kernel's ``Documentation/userspace-api`` on ``seccomp_filter`` and ``landlock``.
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from errno import ENOSYS, EPERM
from functools import partial
from pathlib import Path

from grandrounds.errors import ConfigurationError

ISOLATION_VARIABLE = "GRANDROUNDS_ISOLATION"
SECCOMP, LANDLOCK = "seccomp", "landlock"
LEAST_ABI, SIGNALS_ABI = 3, 6
"""Of Landlock: before the first, which is before Linux 6.2, a process may empty files that it may not write; before the
second (Linux 6.12) it may send signals to processes outside."""

SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/etc", "/sys", "/nix/store")
OF_THE_MACHINE = (
    "cpuinfo", "devices", "driver", "filesystems", "loadavg", "meminfo", "modules", "stat", "sys", "version",
)  # fmt: skip
"""In /proc, whose other entries are of other processes."""
DEVICES = ("null", "zero", "full", "random", "urandom")
ACCELERATORS = ("nvidia*", "nvidia-caps/*", "dri", "kfd")

_REFUSED = {
    "x86_64": (
        *(41, 42, 49, 50, 43, 288),  # socket, connect, bind, listen, accept, accept4
        *(101, 310, 311, 312, 438, 440),  # ptrace, process_vm_readv and _writev, kcmp, pidfd_getfd, process_madvise
        *(200, 129, 297, 424),  # tkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send_signal
        *(29, 30, 68, 240),  # shmget, shmat, msgget, mq_open
        *(425, 426, 427, 321, 298, 323),  # io_uring_setup, _enter and _register, bpf, perf_event_open, userfaultfd
        *(248, 249, 250, 304),  # add_key, request_key, keyctl, open_by_handle_at
        *(165, 166, 155, 161, 272, 308, 428, 429, 430, 442),  # mounts and namespaces
        *(246, 320, 175, 313),  # kexec_load and _file_load, init_module, finit_module
        *(90, 91, 268, 452, 92, 93, 94, 260),  # chmod, fchmod, fchmodat, fchmodat2, chown, fchown, lchown, fchownat
        *(188, 189, 190, 463, 64),  # setxattr, lsetxattr, fsetxattr, setxattrat, semget
    ),
    "aarch64": (
        *(198, 203, 200, 201, 202, 242),
        *(117, 270, 271, 272, 438, 440),
        *(130, 138, 240, 424),
        *(194, 196, 186, 180),
        *(425, 426, 427, 280, 241, 282),
        *(217, 218, 219, 265),
        *(40, 39, 41, 51, 97, 268, 428, 429, 430, 442),
        *(104, 294, 105, 273),
        *(52, 53, 452, 55, 54),
        *(5, 6, 7, 463, 190),
    ),
}
"""Numbers of system calls that are refused whatever their arguments."""
_NUMBERS = {
    "x86_64": {
        "kill": 62, "tgkill": 234, "pair": 53, "limits": 302, "clone": 56, "file": 72, "ioctl": 16, "group": 109,
    },
    "aarch64": {
        "kill": 129, "tgkill": 131, "pair": 199, "limits": 261, "clone": 220, "file": 25, "ioctl": 29, "group": 154,
    },
}  # fmt: skip
"""Of those whose arguments decide: ``limits`` is prlimit64, ``pair`` socketpair, ``file`` fcntl, ``group`` setpgid."""
_CLONE3 = 435
"""Its flags are in memory, where no filter can look: as if the kernel did not have it, so that libraries use clone."""
_NAMESPACES = 0x7E020000
_OWNERS = {"file": (8, 15), "ioctl": (0x8901, 0x8902)}
"""Commands that name a process to which the kernel sends signals: F_SETOWN, F_SETOWN_EX, FIOSETOWN, SIOCSPGRP."""
_SECCOMP_CALL = {"x86_64": 317, "aarch64": 277}
_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_LOAD, _EQUAL, _AT_LEAST, _HAS, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _REFUSE, _KILL_PROCESS = 0x7FFF0000, 0x00050000 | EPERM, 0x80000000
_UNKNOWN = 0x00050000 | ENOSYS
_NUMBER, _ARCHITECTURE_FIELD, _FIRST, _SECOND = 0, 4, 16, 24
"""Offsets of the system call's number, its architecture, and its first two arguments."""
_NO_NEW_PRIVILEGES, _SET_FILTER, _ALL_THREADS = 38, 1, 1
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIRECTORY = (1 << bit for bit in range(4))
_TRUNCATE, _DEVICE = 1 << 14, 1 << 15
_SPECIAL_FILES = 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12
"""Making of devices, sockets, pipes and symbolic links, which no folder gets."""
_READ = _EXECUTE | _READ_FILE | _READ_DIRECTORY
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _DEVICE

_library = ctypes.CDLL(None, use_errno=True)


class Isolation(StrEnum):
    """Where a site works on tasks: in FLARE's process, or in a child with the walls that the system has, or with all."""

    NONE = "none"
    PROCESS = "process"
    REQUIRED = "required"

    @classmethod
    def chosen(cls, real: bool) -> Isolation:
        """What ``$GRANDROUNDS_ISOLATION`` says; without it ``process`` at a real site, and ``none`` in a simulation.

        Raises:
            ConfigurationError: if it says something else.
        """
        name = os.environ.get(ISOLATION_VARIABLE) or (cls.PROCESS if real else cls.NONE)
        if name not in set(cls):
            raise ConfigurationError(f"{ISOLATION_VARIABLE} must be {', '.join(cls)}, got {name!r}")
        return cls(name)

    def require(self, missing: Mapping[str, str], process: str) -> str:
        """The walls that a process lacks, in words; empty if it has all.

        Raises:
            ConfigurationError: if this is :attr:`REQUIRED` and one is missing.
        """
        lacking = ", ".join(f"{name}: {reason}" for name, reason in sorted(missing.items()))
        if lacking and self is Isolation.REQUIRED:
            raise ConfigurationError(
                f"{process} lacks walls ({lacking}), and {ISOLATION_VARIABLE}={self} asks for them"
            )
        return lacking


@dataclass(frozen=True)
class Openings:
    """What a process may still reach. Paths that do not exist are left out.

    Attributes:
        read: files and folders, to read and to execute.
        write: files and folders, to read and to change; no program in them can be started.
        guarded: processes that no signal may be sent to.
    """

    read: tuple[str, ...]
    write: tuple[str, ...]
    guarded: tuple[int, ...]


def program_paths() -> list[Path]:
    """What any program of this machine reads: the system's files, Python, and what it imports."""
    libraries = [sys.prefix, sys.base_prefix, *sys.path, *os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)]
    system = (Path(path) for path in (*SYSTEM, *(f"/proc/{name}" for name in OF_THE_MACHINE)))
    return [*system, *(Path(path).absolute() for path in libraries if path)]


def device_paths(*patterns: str) -> list[str]:
    """Devices that any program may use, and those of these names."""
    return ["/proc/self", *(str(path) for pattern in (*DEVICES, *patterns) for path in Path("/dev").glob(pattern))]


def missing_walls() -> dict[str, str]:
    """The walls that this system cannot raise, each with its reason."""
    return {name: reason for name, reason in ((SECCOMP, _seccomp_fault()), (LANDLOCK, _landlock_fault())) if reason}


def raise_walls(openings: Openings) -> dict[str, str]:
    """Raise the walls around this process that this system has.

    Returns:
        Those that are missing, each with its reason.
    """
    missing = missing_walls()
    raising: dict[str, Callable[[], None]] = {
        LANDLOCK: partial(_restrict_files, openings),
        SECCOMP: partial(_filter_calls, openings.guarded),
    }
    for name in raising.keys() - missing.keys():
        try:
            _checked(_library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
            raising[name]()
        except OSError as error:
            missing[name] = str(error)
    return missing


def _seccomp_fault() -> str:
    if platform.machine() not in _ARCHITECTURE:
        return f"no filter is known for {platform.system()} on {platform.machine()}"
    action = ctypes.c_uint32(_REFUSE & 0xFFFF0000)
    known = _library.syscall(_SECCOMP_CALL[platform.machine()], 2, 0, ctypes.byref(action)) == 0
    return "" if known else f"the system has none ({os.strerror(ctypes.get_errno())})"


def _landlock_fault() -> str:
    if platform.system() != "Linux":
        return f"{platform.system()} has none"
    abi = _landlock_abi()
    if abi < 0:
        return f"the system has none ({os.strerror(ctypes.get_errno())})"
    return "" if abi >= LEAST_ABI else f"the system has ABI {abi}, {LEAST_ABI} is needed (Linux 6.2)"


def _landlock_abi() -> int:
    return int(_library.syscall(_CREATE, None, ctypes.c_size_t(0), 1))


def _filter_calls(guarded: Sequence[int]) -> None:
    steps = _program(platform.machine(), guarded, alone=_landlock_abi() < SIGNALS_ABI)
    code = b"".join(struct.pack("=HBBI", *step) for step in steps)
    content = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(content))
    _checked(_library.syscall(_SECCOMP_CALL[platform.machine()], _SET_FILTER, _ALL_THREADS, program))


Step = tuple[int, int, int, int]


def _program(machine: str, guarded: Sequence[int], alone: bool) -> Iterator[Step]:
    """The filter in the instructions of the classic Berkeley packet filter: code, jumps if true and false, value.

    Args:
        machine: its architecture.
        guarded: processes that get no signal.
        alone: whether no other process but this one and its group may get signals, because Landlock keeps none inside.
    """
    numbers, refuse = _NUMBERS[machine], (_RETURN, 0, 0, _REFUSE)
    yield from ((_LOAD, 0, 0, _ARCHITECTURE_FIELD), (_EQUAL, 1, 0, _ARCHITECTURE[machine]))
    yield from ((_RETURN, 0, 0, _KILL_PROCESS), (_LOAD, 0, 0, _NUMBER))
    if machine == "x86_64":  # the same calls by 32-bit pointers have numbers of their own
        yield from ((_AT_LEAST, 0, 1, 0x40000000), refuse)
    for number in _REFUSED[machine]:
        yield from ((_EQUAL, 0, 1, number), refuse)
    yield from ((_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _UNKNOWN))
    yield from _call(numbers["clone"], _FIRST, [(_HAS, 0, 1, _NAMESPACES), refuse])
    for name, commands in _OWNERS.items():
        yield from _call(
            numbers[name], _SECOND, [step for value in commands for step in ((_EQUAL, 0, 1, value), refuse)]
        )
    # A process may lead a group of its own and join none: a signal to its group is one to itself and its helpers.
    yield from _call(numbers["group"], _SECOND, [(_EQUAL, 1, 0, 0), refuse])
    allowed = [step for own in (0, os.getpid()) for step in ((_EQUAL, 0, 1, own), (_RETURN, 0, 0, _ALLOW))]
    others = [(_AT_LEAST, 0, 1, 1 if alone else 2**31), refuse]
    others += [step for process in guarded for step in ((_EQUAL, 0, 1, process), refuse)]
    for name in ("kill", "tgkill"):
        yield from _call(numbers[name], _FIRST, [*allowed, *others])
    # Limits of this process alone, which it names by 0: by those of its parent it could keep that from writing its ledger.
    yield from _call(numbers["limits"], _FIRST, [(_EQUAL, 1, 0, 0), refuse])
    # Connected pairs of Unix streams, by which Python's processes talk; a pair of datagrams could be connected elsewhere.
    yield from ((_EQUAL, 1, 0, numbers["pair"]), (_RETURN, 0, 0, _ALLOW))
    yield from ((_LOAD, 0, 0, _FIRST), (_EQUAL, 0, 3, socket.AF_UNIX.value), (_LOAD, 0, 0, _SECOND))
    yield from ((_AND, 0, 0, 0xF), (_EQUAL, 1, 0, socket.SOCK_STREAM.value), refuse, (_RETURN, 0, 0, _ALLOW))


def _call(number: int, argument: int, steps: Sequence[Step]) -> Iterator[Step]:
    """Steps that look at an argument of one system call; where none of them returns, the call's number is looked at on."""
    yield from ((_EQUAL, 0, len(steps) + 2, number), (_LOAD, 0, 0, argument), *steps, (_LOAD, 0, 0, _NUMBER))


def _restrict_files(openings: Openings) -> None:
    abi = _landlock_abi()
    files = (1 << (16 if abi >= 5 else 15)) - 1
    # Files; then TCP, from ABI 4 on; then signals and abstract Unix sockets to processes outside, from ABI 6 on.
    asked = struct.pack("=QQQ", files, 3, 3)[: 24 if abi >= SIGNALS_ABI else 16 if abi >= 4 else 8]
    rules = _checked(_library.syscall(_CREATE, asked, ctypes.c_size_t(len(asked)), 0))
    try:
        _open_up(rules, openings.read, _READ)
        _open_up(rules, openings.write, files & ~_SPECIAL_FILES & ~_EXECUTE)
        _checked(_library.syscall(_RESTRICT, rules, 0))
    finally:
        os.close(rules)


def _open_up(rules: int, paths: Iterable[str], rights: int) -> None:
    for path in paths:
        with suppress(FileNotFoundError, NotADirectoryError):
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                allowed = rights if Path(path).is_dir() else rights & _FILE_RIGHTS
                _checked(_library.syscall(_ADD, rules, 1, struct.pack("=Qi", allowed, descriptor), 0))
            finally:
                os.close(descriptor)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
