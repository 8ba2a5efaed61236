"""Live writers for benchmarks, in a process of their own: many small flushes at a steady pace.

Each put fills its memtable, so that pylance's writer flushes it in the background, as it does for
a writer that stays open.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Self

import lance
import numpy as np

from bench.tables import rows_of

ROWS = 20
DIM = 8
BASE_ROWS = 4_000


class Flushing:
    """`with Flushing(shards, flushes_per_second) as writers:`, until `stop` or the end.

    `shards` are (table, shard) pairs, flushed one after the other, evenly over time.
    """

    def __init__(
        self,
        shards: Sequence[tuple[str, str]],
        flushes_per_second: float,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self._request = json.dumps([list(shards), flushes_per_second, dict(options or {})])
        self.flushes = 0

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(self._request + "\n")
        self._process.stdin.flush()
        self._process.stdout.readline()  # every writer is open
        return self

    def stop(self) -> None:
        """Close the writers. `flushes` then says how many puts there were."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
            assert self._process.stdout
            self.flushes = int(self._process.stdout.readline())
            if self._process.wait():
                raise RuntimeError(f"the writers ended with {self._process.returncode}")

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.stop()
        self._process.kill()
        self._process.wait()


def _main() -> None:
    shards, flushes_per_second, options = json.loads(sys.stdin.readline())
    datasets = {uri: lance.dataset(uri, storage_options=options or None) for uri, _ in shards}
    writers = [
        datasets[uri].mem_wal_writer(shard, max_wal_flush_interval_ms=1, max_memtable_rows=ROWS)
        for uri, shard in shards
    ]
    told = threading.Event()
    threading.Thread(target=_wait_for_end, args=[told], daemon=True).start()
    print("open", flush=True)
    began, flushes = time.monotonic(), 0
    while not told.wait(max(0.0, began + flushes / flushes_per_second - time.monotonic())):
        place = flushes % len(writers)
        writers[place].put(rows_of(_keys(place, len(writers), flushes), flushes, DIM))
        flushes += 1
    for writer in writers:
        writer.close()
    print(flushes, flush=True)


def _wait_for_end(told: threading.Event) -> None:
    sys.stdin.read()
    told.set()


def _keys(place: int, places: int, seed: int) -> np.ndarray:
    """Half of them in the base, half new; each shard has its own."""
    old = np.random.default_rng(seed).choice(BASE_ROWS // places, ROWS // 2, replace=False)
    new = BASE_ROWS + seed * ROWS + np.arange(ROWS // 2)
    return np.concatenate([old, new]) * places + place


if __name__ == "__main__":
    _main()
