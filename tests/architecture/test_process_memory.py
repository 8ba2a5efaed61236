"""What the C library is told about arenas, seen from outside: threads share them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_COUNT = """
import ctypes, os, sys, threading
from memwal.run.process import process_memory
for _ in range(int(sys.argv[1])):
    process_memory.limit_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
barrier = threading.Barrier(16)
def work():
    libc.malloc(100_000)
    barrier.wait()
threads = [threading.Thread(target=work) for _ in range(16)]
[t.start() for t in threads]
[t.join() for t in threads]
read, write = os.pipe()
libc.fdopen.restype = ctypes.c_void_p
file = libc.fdopen(write, b"w")
libc.malloc_info(0, ctypes.c_void_p(file))
libc.fflush(ctypes.c_void_p(file))
print(os.read(read, 1 << 20).count(b"<heap "))
"""


def arenas(times: int, **more: str) -> int:
    """How many there are where they were limited that many times."""
    environment = {k: v for k, v in os.environ.items() if k != "MALLOC_ARENA_MAX"} | more
    words = [sys.executable, "-c", _COUNT, str(times)]
    return int(subprocess.check_output(words, env=environment, text=True))


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's arenas")
def test_threads_share_a_bounded_number_of_arenas() -> None:
    assert arenas(2) <= max(2, os.cpu_count() or 1)
    assert arenas(2) < arenas(0)
    assert arenas(1, MALLOC_ARENA_MAX="5") == arenas(0, MALLOC_ARENA_MAX="5")
