"""The fakes: in-memory stores, a manual clock, and faults by script. Shipped, so plugins can test.

Everything here is deterministic: the same script and seed give the same run.

What the fakes leave out
------------------------
`tests/store/` and `tests/jobs/merge/` run one suite on fakes and on real stores; what differs is
listed here, for the tables of `memwal.testing.tables` and of `tests/simulation/lake.py` too, with
what it means for a proof.

Stores:
- A call is one instant, whole or not at all. Torn and half-written files are left to the fuzz
  tests, batch deletes that fail in part to `tests/faults/test_garbage_faults.py`.
- No retry, time-out or throttling inside a call: those of our own stores are only run by
  `tests/store/test_s3_faults.py` and by the proxy of `tests/faults/`.
- Everybody sees a write at once, as on S3. The simulation's listings may lag, single reads never.
- Times are exact; S3 tells whole seconds. A grace below some seconds is not proven.
- A crash comes between two calls, and takes a whole actor. What kill -9 does within one is seen in
  `tests/faults/`, on real processes.

Tables:
- One integer key and one number. Schema drift, key types, NULLs, folding and the SQL of deletes are
  for `tests/jobs/merge/`; a wrong row for these reasons is not found here.
- Only the scan join, which notices new keys. That the index join is guarded is shown on plans and
  on real tables. Lance also refuses commits that would do no harm (200 new keys and more at once):
  the fakes let more runs through, so no proof is weaker for it.
- A version that was expired can't be read or committed on, from one instant to the next. Lance may
  still serve what it has in memory. Only manifests go: no scan is cut short by a lost data file.
- Compaction sees fragments without deleted rows, and erases every catch-up entry. Lance keeps that
  of an index which it can't remap, wider than what is covered: such reads scan, and stay right.
- An index has one segment, which appending widens. Segments built apart, retraining and vector
  models are for `tests/jobs/index_catchup/`.
- A snapshot is stored inline and survives every commit. External files, which Lance loses, and the
  bytes themselves are for `tests/jobs/snapshot/test_snapshot.py`.
- Branches have no commits and no MemWAL of their own. Nothing is restored, overwritten, detached or
  initialised anew: the guards against that are shown on real tables only.
- A plain write of a user lands at once on the latest version, as Lance's own retries make it.
- Views are built by the fakes. `store.view` itself runs on real tables only.
"""

from memwal.testing.clock import ManualClock
from memwal.testing.faults import Call, CallHook, Fault, FaultyObjects, HookedObjects
from memwal.testing.objects import MemoryBucket, MemoryObjects

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
