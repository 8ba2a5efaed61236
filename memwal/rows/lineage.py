"""Whether a shard's pending generations belong to the MemWAL index that the table has now. Pure."""

from __future__ import annotations

from memwal.errors import Refused
from memwal.model import ShardView


def check_lineage(shard: ShardView, flushed_at_nanos: int, mem_wal_since_nanos: int | None) -> None:
    """Raise Refused when the oldest pending generation is older than the table's MemWAL index.

    That happens after an overwrite or a restore to before MemWAL was initialised: progress is gone,
    `_mem_wal/` stays, and merging would bring dead rows back. `mem_wal_since_nanos` is when the
    index has provably existed from, None when no retained version proves it.
    """
    if mem_wal_since_nanos is not None and mem_wal_since_nanos <= flushed_at_nanos:
        return
    oldest = shard.pending[0].generation
    if mem_wal_since_nanos is None:
        raise Refused(
            "MW-H04",
            f"shard {shard.shard_id}: no retained version of the table shows whether its MemWAL "
            f"index existed when generation {oldest} was flushed: either versions were expired "
            "while the shard had never been merged, or the table was overwritten or restored and "
            "initialised again. If it was not, its rows are live: pass --allow-reinitialised. If "
            "it was, they are dead; keep them until you know",
        )
    raise Refused(
        "MW-H05",
        f"shard {shard.shard_id}: the table's MemWAL index was initialised after generation "
        f"{oldest} was flushed: the table was overwritten or restored and initialised again, and "
        "merging would bring dead rows back. Pass --allow-reinitialised only if those rows are "
        "wanted",
    )
