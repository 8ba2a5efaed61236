"""What the C library is told about arenas, seen from outside: threads share them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from memwal.run.process import process_memory

_COUNT = """
import ctypes, os, sys, threading
from memwal.run.process import process_memory
if sys.argv[1] == "limited":
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


def arenas(how: str, **more: str) -> int:
    environment = {k: v for k, v in os.environ.items() if k != "MALLOC_ARENA_MAX"} | more
    done = subprocess.run(
        [sys.executable, "-c", _COUNT, how],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's arenas")
def test_threads_share_a_bounded_number_of_arenas() -> None:
    bound = max(2, os.cpu_count() or 1)

    assert arenas("limited") <= bound
    assert arenas("unlimited") > arenas("limited")
    assert arenas("limited", MALLOC_ARENA_MAX="5") == arenas("unlimited", MALLOC_ARENA_MAX="5")


def test_doing_it_twice_does_no_harm() -> None:
    process_memory.limit_arenas()
    process_memory.limit_arenas()
