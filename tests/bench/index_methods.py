"""What extending an index costs, by its type and the bytes of its column: the numbers behind
`memwal/jobs/index_catchup/plan.py`.

`python -m tests.bench.index_methods [TYPE...]` on local disk. Seconds are those of the processor:
what a free machine takes on one core.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("LANCE_LOG", "error,lance::index=off")

import lance
import numpy as np
import pyarrow as pa

Make = Callable[[np.random.Generator, int], pa.Array]

_WORDS = np.array([f"word{number:04d}" for number in range(5000)])
_BASE_ROWS_MIN = 3000  # a codebook is trained on them


def cases() -> Iterator[tuple[str, str, Make, int, Mapping[str, Any]]]:
    """A type, what its column holds, how that is made, how many rows, and settings."""
    for kind, rows in (("BTREE", 200_000), ("ZONEMAP", 500_000), ("BLOOMFILTER", 500_000)):
        yield kind, "int64", _numbers, rows, {}
        yield kind, "512 B", lambda rng, n: _hex(rng, n, 512), 50_000, {}
    for size in (4, 256):
        yield "BITMAP", f"{size} B", lambda rng, n, s=size: _few(rng, n, s), 100_000, {}
    for count in (2, 32):
        yield (
            "LABEL_LIST",
            f"{count} labels",
            lambda rng, n, c=count: _labels(rng, n, c),
            50_000,
            {},
        )
    for words, rows in ((8, 50_000), (450, 5_000)):
        yield "INVERTED", f"{words} words", lambda rng, n, w=words: _text(rng, n, w), rows, {}
        yield "NGRAM", f"{words} words", lambda rng, n, w=words: _text(rng, n, w), rows // 2, {}
    for kind in ("FLAT", "PQ", "SQ", "RQ", "HNSW_FLAT", "HNSW_SQ", "HNSW_PQ"):
        slow = "HNSW" in kind
        for dim, rows in ((32, 50_000), (768, 10_000)):
            settings = {"num_partitions": 4 if slow else 32}
            if "PQ" in kind:
                settings["num_sub_vectors"] = dim // 4
            rows = rows // 4 if slow else rows
            yield f"IVF_{kind}", f"{dim} d", lambda r, n, d=dim: _vectors(r, n, d), rows, settings


def _numbers(rng: np.random.Generator, count: int) -> pa.Array:
    return pa.array(rng.integers(0, 2**60, count))


def _hex(rng: np.random.Generator, count: int, size: int) -> pa.Array:
    return pa.array([rng.bytes(size // 2).hex() for _ in range(count)])


def _few(rng: np.random.Generator, count: int, size: int) -> pa.Array:
    return pa.array([f"{number:0{size}d}" for number in rng.integers(0, 100, count)])


def _labels(rng: np.random.Generator, count: int, each: int) -> pa.Array:
    return pa.array([[f"t{a:03d}" for a in row] for row in rng.integers(0, 50, (count, each))])


def _text(rng: np.random.Generator, count: int, words: int) -> pa.Array:
    return pa.array([" ".join(row) for row in _WORDS[rng.integers(0, len(_WORDS), (count, words))]])


def _vectors(rng: np.random.Generator, count: int, dim: int) -> pa.Array:
    values = pa.array(rng.random(count * dim, dtype=np.float32))
    return pa.FixedSizeListArray.from_arrays(values, dim)


def _measure(uri: str, kind: str, make: Make, rows: int, settings: Mapping[str, Any]) -> str:
    rng = np.random.default_rng(1)
    base = pa.table({"x": make(rng, max(rows // 2, _BASE_ROWS_MIN))})
    dataset = lance.write_dataset(base, uri)
    build = dataset.create_index if kind.startswith("IVF_") else dataset.create_scalar_index
    build("x", kind, name="x", **settings)
    new = pa.table({"x": make(rng, rows)})
    version = lance.write_dataset(new, uri, mode="append").version
    told = f"{rows:>8,} {new.nbytes / 1e6:>7.1f}"
    ways: dict[str, dict[str, Any]] = {
        "append": {"num_indices_to_merge": 0},
        "merge": {"num_indices_to_merge": 1},
        "retrain": {"retrain": True},
    }
    for how in ways.values():
        lance.dataset(uri, version=version).restore()
        at = lance.dataset(uri)
        started = time.process_time()
        at.optimize.optimize_indices(index_names=["x"], **how)
        told += f" {time.process_time() - started:>8.3f}"
    return told


def main(kinds: list[str]) -> None:
    """Measure the types that are named, or all."""
    print(
        f"{'type':13} {'column':10} {'rows':>8} {'MB':>7} {'append':>8} {'merge':>8} {'retrain':>8}"
    )
    for kind, what, make, rows, settings in cases():
        if kinds and kind not in kinds:
            continue
        with tempfile.TemporaryDirectory() as folder:
            told = _measure(str(Path(folder) / "t"), kind, make, rows, settings)
            print(f"{kind:13} {what:10} {told}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
