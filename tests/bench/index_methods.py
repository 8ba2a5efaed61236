"""What each way to extend an index costs: the numbers behind `memwal/plan/index_catchup.COSTS`.

`python tests/bench/index_methods.py [rows] [new_rows]` on local disk.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("LANCE_LOG", "error,lance::index=off")

import lance
import numpy as np
import pyarrow as pa

DIMENSION = 32
WORDS = [f"word{i:04d}" for i in range(5000)]
SCALARS = {
    "BTREE": "id",
    "BITMAP": "category",
    "LABEL_LIST": "tags",
    "INVERTED": "text",
    "NGRAM": "text",
    "ZONEMAP": "id",
    "BLOOMFILTER": "id",
}
VECTORS = {
    "IVF_FLAT": {"num_partitions": 64},
    "IVF_PQ": {"num_partitions": 64, "num_sub_vectors": 8},
}


def rows(start: int, count: int) -> pa.Table:
    rng = np.random.default_rng(start)
    words = rng.integers(0, len(WORDS), (count, 8))
    tags = rng.integers(0, 50, (count, 2))
    return pa.table(
        {
            "id": pa.array(range(start, start + count), pa.int64()),
            "category": pa.array([f"c{i % 100}" for i in range(count)]),
            "tags": pa.array([[f"t{a}", f"t{b}"] for a, b in tags]),
            "text": pa.array([" ".join(WORDS[w] for w in line) for line in words]),
            "vector": pa.FixedSizeListArray.from_arrays(
                pa.array(rng.random(count * DIMENSION).astype("f4")), DIMENSION
            ),
        }
    )


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def main(base: int, new: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        uri = str(Path(folder) / "t")
        kinds = {**dict.fromkeys(SCALARS), **VECTORS}
        dataset = lance.write_dataset(rows(0, base), uri)
        print(f"{base:,} rows indexed, {new:,} more in 2 fragments; seconds")
        print(f"{'kind':12} {'build':>7} {'append 0':>9} {'segments':>9} {'append all':>11} "
              f"{'retrain':>8}")  # fmt: skip
        built = {}
        for kind, settings in kinds.items():
            if settings is None:
                built[kind] = timed(
                    lambda k=kind: dataset.create_scalar_index(SCALARS[k], k, name=k)
                )
            else:
                built[kind] = timed(
                    lambda k=kind, s=settings: dataset.create_index("vector", k, name=k, **s)
                )
        for part in range(2):
            lance.write_dataset(rows(base + part * new // 2, new // 2), uri, mode="append")
        version = lance.dataset(uri).version
        for kind, settings in kinds.items():

            def reset() -> lance.LanceDataset:
                old = lance.dataset(uri, version=version)
                old.restore()
                return lance.dataset(uri)

            def optimise(kind: str = kind, **how: object) -> float:
                at = reset()
                return timed(lambda: at.optimize.optimize_indices(index_names=[kind], **how))

            def segments(kind: str = kind) -> float:
                at = reset()
                column = SCALARS[kind]
                fragments = [f.fragment_id for f in at.get_fragments()][-2:]

                def run() -> None:
                    parts = [
                        at.create_index_uncommitted(
                            column, kind, name=kind, replace=True, fragment_ids=[fragment]
                        )
                        for fragment in fragments
                    ]
                    at.commit_existing_index_segments(kind, column, parts)

                return timed(run)

            row = [built[kind], optimise(num_indices_to_merge=0)]
            row.append(segments() if settings is None else float("nan"))
            row += [optimise(num_indices_to_merge=1), optimise(retrain=True)]
            print(f"{kind:12} " + " ".join(f"{v:9.3f}" for v in row))


if __name__ == "__main__":
    main(*(int(a) for a in sys.argv[1:3]) if len(sys.argv) > 2 else (500_000, 50_000))
