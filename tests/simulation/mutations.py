"""Named mutations: each switches one safety check off; the simulation or the tests must notice.

`make mutation` prints the table. A mutation is text in a file and what it becomes, on a copy of the
sources; text that is not found exactly once is an error, so the list can't rot.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """`tests` are pytest arguments for what the simulation can't see; empty: the simulation."""

    name: str
    file: str
    before: str
    after: str
    tests: str = ""


MUTATIONS = (
    Mutation(
        name="garbage: retained versions don't hold",
        file="memwal/plan/garbage.py",
        before="        merged = lowest.merged.get(shard_id, 0)\n        if generation > merged:",
        after="        merged = lowest.merged.get(shard_id, 0)\n        if False:",
    ),
    Mutation(
        name="garbage: the latest version does not hold either",
        file="memwal/plan/garbage.py",
        before="return self.version_holds(shard_id, generation) or self",
        after="return self",
    ),
    Mutation(
        name="garbage: indexes don't hold",
        file="memwal/plan/garbage.py",
        before="            if reached < generation:",
        after="            if False:",
    ),
    Mutation(
        name="garbage: an index that is not recorded does not hold",
        file="memwal/plan/garbage.py",
        before="            if reached is None:\n                return",
        after="            if reached is None:\n                continue\n                return",
    ),
    Mutation(
        name="garbage: no grace for files",
        file="memwal/plan/garbage_model.py",
        before="    return now_nanos - round(limits.grace_seconds * 1e9)",
        after="    return now_nanos",
    ),
    Mutation(
        name="garbage: the past manifest is not asked whether it named the folder",
        file="memwal/plan/garbage.py",
        before="        if folder.name in self._listed_before:",
        after="        if False:",
    ),
    Mutation(
        name="garbage: a number flushed within the grace may go",
        file="memwal/plan/garbage.py",
        before="        if number >= past.current_generation:",
        after="        if False:",
    ),
    Mutation(
        name="wal: entries above the replay position may go",
        file="memwal/plan/garbage.py",
        before="        if entry.position > replay:",
        after="        if False:",
    ),
    Mutation(
        name="wal: sentinels may go",
        file="memwal/plan/garbage.py",
        before="        if entry.fence_sentinel:",
        after="        if False:",
    ),
    Mutation(
        name="wal: the highest position may go",
        file="memwal/plan/garbage.py",
        before="        if entry.position == highest:",
        after="        if False:",
    ),
    Mutation(
        name="wal: an unfinished claim holds nothing",
        file="memwal/plan/garbage.py",
        before="                or _claim_holds(entry, claims)",
        after="                or None",
    ),
    Mutation(
        name="merge: a fold is never cut for want of an anchor",
        file="memwal/plan/merge.py",
        before="    if not is_guarded(facts, Join.SCAN):",
        after="    if False:",
    ),
    Mutation(
        name="merge: commits between delete pass and mark are not looked at",
        file="memwal/apply/merge.py",
        before="        if version > view.version + 1:",
        after="        if False:",
    ),
    Mutation(
        name="merge: newest first",
        file="memwal/plan/merge.py",
        before="    for generation in wanted(shard, request):",
        after="    for generation in reversed(wanted(shard, request)):",
    ),
    Mutation(
        name="merge: a commit after an error is not looked for",
        file="memwal/apply/merge.py",
        before="                if shard.merged_generation >= start:",
        after="                if False:",
    ),
    Mutation(
        name="merge: tombstones stay out",
        file="memwal/plan/merge.py",
        before="        deletes = Deletes.SAME_COMMIT",
        after="        deletes = Deletes.NONE",
    ),
    Mutation(
        name="snapshot: no repair",
        file="memwal/apply/snapshot.py",
        before="        while fell := self._lowered(run, landed):",
        after="        while fell := {}:",
    ),
    Mutation(
        name="manifests: commit without put-if-absent",
        file="memwal/store/shard_manifests.py",
        before="        self._objects.put_if_absent(path, data)",
        after="        self._objects.put(path, data)",
    ),
    Mutation(
        name="manifests: a lost reply is taken for a success",
        file="memwal/store/shard_manifests.py",
        before="        if stored == data:\n            return\n        if stored is None",
        after="        if True:\n            return\n        if stored is None",
    ),
    Mutation(
        name="fencing: no sentinel",
        file="memwal/store/fencing.py",
        before="        position = 1 if manifest.writer_epoch == 1 else self._fence(manifest)",
        after="        position = manifest.replay_after_wal_entry_position + 1\n"
        "        while self._wal.exists(shard_id, position):\n            position += 1",
        tests="tests/behaviour/test_fencing.py",
    ),
    Mutation(
        name="fencing: the epoch is not verified before an update",
        file="memwal/store/fencing.py",
        before="            claim = self.verify(claim)\n            try:",
        after="            latest = self._manifests.latest(claim.manifest.shard_id)\n"
        "            latest = replace(latest, writer_epoch=claim.writer_epoch)\n"
        "            claim = replace(claim, manifest=latest)\n"
        "            try:",
    ),
    Mutation(
        name="drop: the writer's epoch is bumped",
        file="memwal/apply/garbage.py",
        before="        landed = self.manifests.commit(current, proposed)",
        after="        landed = self.manifests.commit(\n"
        "            current, replace(proposed, writer_epoch=proposed.writer_epoch + 1)\n        )",
    ),
    Mutation(
        name="catch-up: the goal is not checked",
        file="memwal/apply/index_catchup.py",
        before="        if run.error is not None or (goal.is_reached(look, name)"
        " and not run.owes_retrain):",
        after="        if True:",
    ),
)
