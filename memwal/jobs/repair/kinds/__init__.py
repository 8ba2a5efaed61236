"""The kinds of damage that may ever be mended, a module each: its evidence, its gate, its cure.

`KINDS` is in the order of mending: what a shard is comes before what it lists, and both before what
is made from them. A kind is a function of the evidence; what it proposes is done by `apply` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from memwal.jobs.repair.kinds import (
    base_file,
    checkpoint,
    generation,
    hint,
    index,
    progress,
    record,
    shard_manifest,
    snapshot,
    version,
    wal_entry,
)
from memwal.jobs.repair.model import Damage, Evidence

KINDS: Mapping[str, Callable[[Evidence], Sequence[Damage]]] = {
    module.NAME: module.find
    for module in (
        base_file,
        version,
        record,
        shard_manifest,
        wal_entry,
        generation,
        progress,
        index,
        checkpoint,
        snapshot,
        hint,
    )
}
