"""Mutations of what says that a table's write spec may be changed."""

from __future__ import annotations

from tests.simulation.mutation_list import Mutation, mutations

QUIESCE: tuple[Mutation, ...] = mutations(
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
)
