"""Runs a check against many bad inputs: within bounded memory, counted, and replayed once failed.

`MEMWAL_FUZZ_SECONDS` makes each attack go on for that long (`make fuzz` sets it). An input that
fails then is kept under `corpus/`, by the attack's name, and is tried first from then on.
"""

from __future__ import annotations

import hashlib
import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

SECONDS = float(os.environ.get("MEMWAL_FUZZ_SECONDS", "0"))
CORPUS = Path(__file__).with_name("corpus")
EXAMPLES = 100
EXAMPLES_PER_ROUND = 200
# Beyond what the process has when an attack begins. A forged length asks for more than this.
MEMORY_BYTES_MAX = 3 * 1024**3

tried: Counter[str] = Counter()


def attack(
    name: str, inputs: st.SearchStrategy[bytes], check: Callable[[bytes], None], *, weight: int = 1
) -> None:
    """Give `check` what failed once, then inputs of the strategy."""
    last = b""

    def one(data: bytes) -> None:
        nonlocal last
        last = bytes(data)
        tried[name] += 1
        check(last)

    with bounded_memory():
        for file in sorted((CORPUS / name).glob("*")):
            one(file.read_bytes())
        try:
            for number in _rounds():
                _round(inputs, one, number, EXAMPLES * weight if not SECONDS else None)
        except BaseException:
            if SECONDS:  # after shrinking, the last one is the smallest
                _keep(name, last)
            raise


class _Shown(bytes):
    """Bytes that a failing test shows in part only."""

    def __repr__(self) -> str:
        return (
            f"{bytes(self[:300])!r}… {len(self)} bytes" if len(self) > 300 else super().__repr__()
        )


def _rounds() -> Iterator[int]:
    """Once; in a long run until the time is over, each round with a seed of its own."""
    if not SECONDS:
        yield 0
        return
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        yield time.time_ns()


def _round(
    inputs: st.SearchStrategy[bytes],
    one: Callable[[bytes], None],
    number: int,
    examples: int | None,
) -> None:
    run: Any = given(inputs.map(_Shown))(one)
    run = settings(
        max_examples=examples or EXAMPLES_PER_ROUND,
        database=None,
        deadline=None,
        # The same inputs in every `make test`; `make fuzz` looks for new ones.
        derandomize=examples is not None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )(run)
    if examples is None:
        run = seed(number)(run)
    run()


def _keep(name: str, data: bytes) -> None:
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Makes an allocation by a forged length fail, instead of the machine."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES_MAX
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
