"""Side by side: the scan join against the index join of merge-insert.

For each base size and fold size it commits the same rows both ways to copies of one table, as the
merger does (no conflict retries, a mark), and prints seconds; then fits the constants of
`memwal.jobs.merge.plan.JoinCosts` by least squares over all runs.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
import uuid
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
from lance.mem_wal import CompactedSsTable

KEY = {"lance-schema:unenforced-primary-key": "true"}


def make_base(path: Path, rows: int) -> None:
    """A table of `rows` int64 keys and a float payload, keyed, indexed, MemWAL on."""
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False, metadata=KEY), pa.field("v", pa.float64())]
    )
    table = pa.table([pa.array(np.arange(rows)), pa.array(np.zeros(rows))], schema=schema)
    dataset = lance.write_dataset(table, str(path))
    dataset.create_scalar_index("id", "BTREE")
    dataset.initialize_mem_wal()


def commit_seconds(path: Path, rows: int, base: int, *, use_index: bool, stream: bool) -> float:
    """One upsert of `rows` (half of them new) with a mark."""
    dataset = lance.dataset(str(path))
    rng = np.random.default_rng(rows)
    old = rng.choice(base, rows // 2, replace=False)
    keys = np.concatenate([old, np.arange(base, base + rows - rows // 2)])
    source = pa.table([pa.array(keys), pa.array(np.ones(rows))], schema=dataset.schema)
    builder = (
        dataset.merge_insert(["id"])
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .conflict_retries(0)
        .use_index(use_index)
    )
    builder.mark_sstables_as_compacted([CompactedSsTable(str(uuid.uuid4()), 1)])
    data = source.to_reader() if stream else source
    started = time.perf_counter()
    builder.execute(data)
    return time.perf_counter() - started


def measure(bases: list[int], folds: list[int], repeats: int) -> None:
    """Print the table and the fit."""
    scans, probes = [], []
    print(f"{'base rows':>12} {'fold rows':>10} {'scan s':>8} {'stream s':>8} {'index s':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for base in bases:
            origin = Path(folder) / f"base-{base}"
            make_base(origin, base)
            for rows in (r for r in folds if r <= base):
                seconds = {}
                for name, use_index, stream in (
                    ("scan", False, False),
                    ("stream", False, True),
                    ("index", True, False),
                ):
                    runs = []
                    for _ in range(repeats):
                        copy = Path(folder) / "copy"
                        shutil.copytree(origin, copy)
                        runs.append(
                            commit_seconds(copy, rows, base, use_index=use_index, stream=stream)
                        )
                        shutil.rmtree(copy)
                    seconds[name] = min(runs)
                scans.append((base, rows, seconds["scan"]))
                probes.append((rows, seconds["index"]))
                print(
                    f"{base:>12,} {rows:>10,} {seconds['scan']:>8.3f} {seconds['stream']:>8.3f} "
                    f"{seconds['index']:>8.3f}"
                )
    scan = np.linalg.lstsq(
        np.array([[1, b, r] for b, r, _ in scans]), np.array([s for *_, s in scans]), rcond=None
    )[0]
    probe = np.linalg.lstsq(
        np.array([[1, r] for r, _ in probes]), np.array([s for _, s in probes]), rcond=None
    )[0]
    print(f"scan:  {scan[0]:.3f} s + {scan[1]:.2e} s/base row + {scan[2]:.2e} s/fold row")
    print(f"index: {probe[0]:.3f} s + {probe[1]:.2e} s/fold row")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bases", type=int, nargs="+", default=[200_000, 2_000_000, 10_000_000])
    parser.add_argument("--folds", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    measure(arguments.bases, arguments.folds, arguments.repeats)
