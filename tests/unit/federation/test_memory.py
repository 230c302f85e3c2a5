"""Freed memory stays with the process: asking for it again costs no new pages."""

import subprocess
import sys

import pytest

COUNT_FAULTS = """
import ctypes, resource, sys
sys.path.insert(0, "custom")
from grandrounds.federation.site.worker import keep_freed_memory
if {kept}:
    assert keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.malloc.argtypes, libc.memset.argtypes = [ctypes.c_size_t], [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def touch():
    block = libc.malloc(24_000_000)
    libc.memset(block, 1, 24_000_000)
    libc.free(block)
touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    big, small = libc.malloc(30_000_000), libc.malloc(24_000_000)
    libc.memset(big, 1, 30_000_000)
    libc.memset(small, 1, 24_000_000)
    libc.free(big)
    libc.free(small)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(kept):
    code = COUNT_FAULTS.format(kept=kept)
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="the GNU C library is Linux's")
def test_large_blocks_are_used_again_without_new_pages():
    assert faults(kept=True) < faults(kept=False) / 2
