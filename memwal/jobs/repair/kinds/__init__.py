"""The kinds of damage that may ever be mended, a module each: its evidence, its gate, its cure.

`KINDS` is in the order of mending: what is made from something comes after it. A kind is a function
of the evidence; what it proposes is done by `apply` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from memwal.jobs.repair.kinds import file, hint, progress, record, shard_manifest, snapshot
from memwal.jobs.repair.model import Damage, Evidence

KINDS: Mapping[str, Callable[[Evidence], Iterable[Damage]]] = {
    module.NAME: module.find for module in (file, record, shard_manifest, progress, snapshot, hint)
}
