"""Mutations of what says that a table's write spec may be changed."""

from __future__ import annotations

from tests.simulation.mutation_list import Mutation, mutations

QUIESCE: tuple[Mutation, ...] = (
    *mutations(
        "memwal/jobs/quiesce/plan.py",
        "tests/jobs/quiesce/test_quiesce.py",
        (
            "quiesce: a sealed shard is not in the way",
            "    if shard.manifest.status is ShardStatus.SEALED:",
            "    if False:",
        ),
        (
            "quiesce: rows in a WAL are not in the way",
            "    if plan.action is not RescueAction.NOTHING:",
            "    if False:",
        ),
        (
            "quiesce: a writer that has put nothing is not in the way",
            "    if idle >= limits.idle_seconds:",
            "    if True:",
        ),
        (
            "quiesce: a first claim is no sign of a writer",
            "    if sign is None or not (claimed or manifest.current_generation <= 1):",
            "    if sign is None or not claimed:",
        ),
        (
            "quiesce: a missing generation is not in the way",
            "    for hole in find_holes(shard):",
            "    for hole in ():",
        ),
        (
            "quiesce: a generation that is still listed is not in the way",
            "        if g.generation <= shard.merged_generation:",
            "        if False:",
        ),
        (
            "quiesce: a shard that can't be read is not in the way",
            "        for broken in view.broken",
            "        for broken in ()",
        ),
    ),
    *mutations(
        "memwal/store/settled.py",
        "tests/store/test_settled.py",
        (
            "settled: time may have been turned back since",
            "in (None, *REWINDING):",
            "is None:",
        ),
        (
            "settled: a record of later manifests counts",
            "            known = shard.manifest.version >= version",
            "            known = True",
        ),
        (
            "settled: any number is a count",
            "    if type(value) is not int or not 0 <= value <= layout.U64_MAX:",
            "    if False:",
        ),
        (
            "settled: what is listed counts as settled",
            "    return min(listed, default=shard.manifest.current_generation)",
            "    return shard.manifest.current_generation",
        ),
    ),
    *mutations(
        "memwal/jobs/garbage/job.py",
        "tests/store/test_settled.py",
        (
            "settled: garbage expires the proof",
            "        if acts and seen is not None",
            "        if False and seen is not None",
        ),
    ),
    *mutations(
        "memwal/jobs/verify/plan.py",
        "tests/store/test_settled.py",
        (
            "verify: a MemWAL index may be lost",
            "            if any(due.get(shard, 0) <= g for shard, g in before.mem_wal.merged.items()):",
            "            if False:",
        ),
    ),
)
