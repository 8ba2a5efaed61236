"""Fakes for tests: in-memory stores, a manual clock, scripted faults. Shipped, for plugins' tests.

Everything here is deterministic: the same script and seed give the same run.

What the fakes leave out
------------------------
`tests/store/` and `tests/jobs/merge/` run the same suite on fakes and on real stores. What still
differs is listed here, with what it means for a proof; that includes the tables of
`tests/support/memory_table.py` and of `tests/simulation/lake.py`.

Stores:
- A call is atomic: it happens at one instant, whole or not at all. Torn and half-written files are
  left to the fuzz tests, batch deletes that fail in part to `tests/faults/test_garbage_faults.py`.
- There is no retry, time-out or throttling inside a call. Those of our own stores are exercised
  only by `tests/store/test_store_faults.py` and by the proxy of `tests/faults/`.
- Everybody sees a write at once, as on S3. The simulation's listings may lag, single reads never.
- Times are exact, while S3 gives whole seconds. A grace of only a few seconds is not proven.
- A crash comes between two calls, and takes down a whole actor. What kill -9 does within a call is
  tested in `tests/faults/`, on real processes.

Tables:
- A row is one integer key and one number. Schema drift, key types, NULLs, folding and the SQL of
  deletes are left to `tests/jobs/merge/`; a row that is wrong for these reasons is not found here.
- There is only the scan join, which notices new keys. That the index join is guarded is shown on
  plans and on real tables. Lance also refuses some harmless commits (200 new keys and more at
  once); the fakes let more runs through, so no proof is weaker for it.
- An expired version can't be read or committed on from that instant on, while Lance may still serve
  what it has in memory. Only manifests go: no scan is cut short by a lost data file.
- Compaction sees fragments without deleted rows, and erases every catch-up entry. Lance keeps the
  entry of an index that it can't remap, wider than what is covered: reads then scan, and stay
  right.
- An index has one segment, which appending widens. Segments built apart, retraining and vector
  models are left to `tests/jobs/index_catchup/`.
- A snapshot is stored inline and survives every commit. External files, which Lance loses, and the
  bytes themselves are left to `tests/jobs/snapshot/test_snapshot.py`.
- Branches have no commits and no MemWAL of their own. Nothing is restored, overwritten, detached or
  initialised anew: the guards against that are tested on real tables only.
- A user's plain write lands on the latest version at once, as Lance's own retries achieve.
- The fakes build views themselves. `store.view` runs on real tables only.
"""

from memwal.testing.objects import (
    Call,
    CallHook,
    Fault,
    FaultyObjects,
    HookedObjects,
    ManualClock,
    MemoryBucket,
    MemoryObjects,
)

__all__ = [
    "Call",
    "CallHook",
    "Fault",
    "FaultyObjects",
    "HookedObjects",
    "ManualClock",
    "MemoryBucket",
    "MemoryObjects",
]
