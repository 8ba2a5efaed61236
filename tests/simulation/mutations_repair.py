"""Mutations of what keeps a repair from calling whole what is not, or from losing what it replaces."""

from __future__ import annotations

from tests.simulation.mutation_list import Mutation, mutations

_PLAN = "tests/jobs/repair/test_repair_plan.py"
_REAL = "tests/jobs/repair/test_repair.py"
_APPLY = "tests/jobs/repair/test_repair_apply.py"

REPAIR: tuple[Mutation, ...] = (
    *mutations(
        "memwal/jobs/repair/shards.py",
        _PLAN,
        (
            "repair: manifests that are missing may not have been claims",
            "    return max((base.writer_epoch + max(0, missing), known, *seen)) + 1",
            "    return base.writer_epoch + 1",
        ),
        (
            "repair: a manifest takes a version that was recorded",
            "    return max(known, hint if hint - known <= _LEAP_MAX else 0) + 1",
            "    return shard.manifests.highest_name + 1",
        ),
        (
            "repair: a hint that is far off has names taken",
            "hint if hint - known <= _LEAP_MAX else 0)",
            "hint)",
        ),
        (
            "repair: no stopper leads up to a manifest",
            "    for missing in range(highest + 1, version) if highest else ():",
            "    for missing in ():",
        ),
        (
            "repair: WAL entries that are gone are not named",
            "    lost = [_tell_gap(shard, gone)] if gone else []",
            "    lost: list[str] = []",
        ),
        (
            "repair: generations that nothing proves whole are not named",
            "    if first is not None and first > floor:",
            "    if False:",
        ),
        (
            "repair: a sealed shard is claimed",
            "    sealed = manifest.status is ShardStatus.SEALED",
            "    sealed = False",
        ),
    ),
    *mutations(
        "memwal/jobs/repair/kinds/shard_manifest.py",
        _PLAN,
        (
            "repair: what is merged is replayed again",
            "    floor = max(base.current_generation, shard.merged + 1)",
            "    floor = base.current_generation",
        ),
        (
            "repair: a folder is listed whether it opens or not",
            "for g in shard.kept if g.path in shard.opened}",
            "for g in shard.kept}",
        ),
        (
            "repair: a clone is set back",
            "    if highest and highest not in shard.manifests.damaged and not shard.newer:",
            "    if False:",
        ),
        (
            "repair: a shard is given any spec",
            "    if any(manifest.shard_field_entries for manifest in beside) or len(ids) > 1:",
            "    if False:",
        ),
        (
            "repair: a stopper hides what a stalled writer wrote",
            "    leads_up = not more and all(",
            "    leads_up = all(",
        ),
    ),
    *mutations(
        "memwal/jobs/repair/kinds/generation.py",
        _REAL,
        (
            "repair: a generation comes back with a part of its rows",
            "        if not rows[number] or (wanted is not None and rows[number] != wanted):",
            "        if not rows[number]:",
        ),
        (
            "repair: a generation comes back without WAL",
            "        if not rows[number] or (wanted is not None and rows[number] != wanted):",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/repair/kinds/wal_entry.py",
        _PLAN,
        (
            "repair: the WAL of a writer that is open is changed",
            "    if idle < evidence.idle_seconds:",
            "    if False:",
        ),
        (
            "repair: any torn entry may have been a sentinel",
            "        if len(between) == 1:",
            "        if between:",
        ),
        (
            "repair: a torn entry's rows are not called lost",
            "            found = _judge_lost(evidence, shard, found, torn)",
            "            pass",
        ),
    ),
    *mutations(
        "memwal/jobs/repair/kinds/progress.py",
        _PLAN,
        (
            "repair: progress is raised over what was merged again",
            "            if _has_stayed(evidence, after.version, shard, fell_to):",
            "            if True:",
        ),
        (
            "repair: progress is raised over versions that have expired",
            "            if after.version > before.version + 1:\n",
            "            if False:\n",
        ),
        (
            "repair: progress is raised over a restore",
            "        if after.version in evidence.rewound or before.mem_wal is None",
            "        if before.mem_wal is None",
        ),
    ),
    *mutations(
        "memwal/jobs/repair/kinds/hint.py",
        _PLAN,
        (
            "repair: a hint at a version that was lost is made to agree",
            " and hint.newest in evidence.committed:",
            " and False:",
        ),
    ),
    *mutations(
        "memwal/jobs/repair/kinds/record.py",
        _REAL,
        (
            "repair: a claim that was just written is released",
            "        if idle < evidence.idle_seconds:",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/repair/kinds/checkpoint.py",
        _REAL,
        (
            "repair: a newer memwal's record is put aside",
            "    if fault.is_newer or digest is None:",
            "    if digest is None:",
        ),
        (
            "repair: a checkpoint follows a generation that does not come back",
            "damage.path == path and any(isinstance(effect, Flush) for effect in damage.effects)",
            "damage.path == path",
        ),
    ),
    *mutations(
        "memwal/jobs/repair/plan.py",
        _PLAN,
        (
            "repair: a shard is claimed over an entry that waits",
            "if damage.loses_rows or (damage.fences and damage.shard_id in waiting)",
            "if damage.loses_rows",
        ),
        (
            "repair: what no kind names is not told",
            "        if check.ok is False and check.name not in told:",
            "        if False:",
        ),
        (
            "repair: a shard gets two manifests by one look",
            "            if claimed in taken | in_wal:",
            "            if claimed in in_wal:",
        ),
    ),
    *mutations(
        "memwal/jobs/repair/apply.py",
        _REAL,
        (
            "repair: rows are given up unasked",
            "        if self.accept_loss:",
            "        if True:",
        ),
        (
            "repair: shards are claimed unasked",
            "        if fencing and not self.confirm(fencing):",
            "        if False:",
        ),
        (
            "repair: what is replaced is not kept",
            "        self.hands.quarantine(path, digest)",
            "        pass",
        ),
    ),
    *mutations(
        "memwal/jobs/repair/store/__init__.py",
        _APPLY,
        (
            "repair: what was written meanwhile is replaced",
            "            if found.sha256.hex() == digest:\n",
            "            if True:\n",
        ),
        (
            "repair: another's manifest counts as ours",
            "            if stored != data:",
            "            if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/repair/store/backups.py",
        _REAL,
        (
            "repair: an object is taken from a backup unchecked",
            "copy_object(self.place, self.table, path, expected=wanted)\n            elif",
            "copy_object(self.place, self.table, path)\n            elif",
        ),
        (
            "repair: a number is taken from a backup of another history",
            "        if phase_of(path) not in NUMBERED:",
            "        if True:",
        ),
        (
            "repair: what a copy wrote last is taken",
            "        own = frozenset(b.name for b in backups.list() if b.source == table.uri)",
            "        own = frozenset(names.values())",
        ),
        (
            "repair: a base file that is garbled is not looked for",
            "        garbled = self._find_garbled(damaged)",
            "        garbled: list[Damage] = []",
        ),
    ),
    *mutations(
        "memwal/store/shards/writers.py",
        _REAL,
        (
            "repair: ingest gives a shard that lost its manifests a first one",
            "        if latest is None and self._has_files(shard_id):",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/repair/job.py",
        _REAL,
        (
            "repair: a place of backups is repaired",
            "            StoredBackups(stores.objects).refuse_any()",
            "            pass",
        ),
    ),
    *mutations(
        "memwal/jobs/repair/report.py",
        _REAL,
        (
            "repair: a loss is no error",
            '    if lost:\n        return Corruption("MW-J03"',
            '    if False:\n        return Corruption("MW-J03"',
        ),
        (
            "repair: what came back is called lost",
            "        lost=() if came_back else damage.lost,",
            "        lost=damage.lost,",
        ),
        (
            "repair: what is left is no error",
            "    if left:",
            "    if False:",
        ),
    ),
)
