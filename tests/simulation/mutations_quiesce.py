"""Mutations of what says that a table's write spec may be changed."""

from __future__ import annotations

from tests.simulation.mutation_list import Mutation, mutations

_OBSTACLES = mutations(
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
        "    if idle >= request.idle_seconds:",
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

_PROOF = (
    *mutations(
        "memwal/run/former_merges.py",
        "tests/jobs/quiesce/test_proof_races.py",
        (
            "settled: a record is stored wherever its name landed",
            "    if not proofs.follows(view, record_id):",
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/store/records/former_merges.py",
        "tests/store/test_settled.py",
        (
            "settled: a name counts that did not land right after the view",
            " and record_id in named",
            "",
        ),
    ),
    *mutations(
        "memwal/store/records/former_merges.py",
        "tests/jobs/quiesce/test_proof_races.py",
        (
            "settled: a version need not name the record",
            "        named = view.settled_ids[:_NAMED_MAX]\n",
            "        named = [f.path[-41:-5] for f in self._objects.list(layout.SETTLED)]\n",
        ),
    ),
    *mutations(
        "memwal/store/records/former_merges.py",
        "tests/store/test_settled.py",
        (
            "settled: any number is a count",
            "    if type(value) is not int or not 0 <= value <= layout.U64_MAX:",
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/rows/progress.py",
        "tests/jobs/quiesce/test_proof_races.py",
        (
            "settled: what is not merged",
            "            generation=min(first_due(shard), shard.manifest.current_generation) - 1,",
            "            generation=shard.manifest.current_generation - 1,",
        ),
        (
            "settled: a shard that starts over is the same one",
            " if now == found.manifest_digest else 0",
            "",
        ),
    ),
    *mutations(
        "memwal/store/records/former_merges.py",
        "tests/store/test_settled.py",
        (
            "settled: history goes on behind a restore",
            "            if manifest.version <= 1 or not self._adds(manifest.version):",
            "            if manifest.version <= 1:",
        ),
        (
            "settled: history of a shard that started over",
            "            if generation and self._is_past(shard.shard_id, generation, made_at_nanos):",
            "            if generation:",
        ),
        (
            "settled: history of a shard with rows in its WAL",
            "        return not (found.unflushed or found.problems or found.refused)",
            "        return True",
        ),
        (
            "settled: history of a shard whose WAL is collected",
            "        if sum(position <= since for position, _ in above) < since - covered:",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/merge/job.py",
        "tests/store/test_settled.py",
        (
            "settled: the versions that show it expire",
            "        record_former(table, options, warn, renewed=False)\n",
            "",
        ),
        (
            "settled: each merge records anew what a record says",
            "record_former(table, options, warn, renewed=False)",
            "record_former(table, options, warn)",
        ),
    ),
    *mutations(
        "memwal/jobs/garbage/apply/__init__.py",
        "tests/store/test_settled.py",
        (
            "settled: garbage expires the versions that show it",
            "                    self.keep_former(self.seen.look.view)",
            "                    pass",
        ),
        (
            "settled: garbage expires the versions that show what could not be recorded",
            "if seen.expirable and not seen.has_unrecorded:",
            "if seen.expirable:",
        ),
    ),
    *mutations(
        "memwal/jobs/garbage/kinds/shard_manifest.py",
        "tests/store/test_settled.py",
        (
            "settled: garbage deletes the manifest that a record cites",
            "shard.cited_version",
            "None",
        ),
        (
            "settled: garbage deletes manifests that show what is not recorded",
            "0 if shard.unrecorded else",
            "",
        ),
    ),
    *mutations(
        "memwal/jobs/garbage/look.py",
        "tests/store/test_settled.py",
        (
            "settled: only the latest version's records hold what they cite",
            "(v for v in self.evidence.versions if v.may_need_record(shard_id))",
            "(v for v in self.evidence.versions"
            " if v.may_need_record(shard_id) and v.version == self.version)",
        ),
        (
            "settled: a record that can't be understood holds nothing",
            "        if None in records:",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/garbage/look.py",
        "tests/jobs/garbage/test_garbage_settled.py",
        (
            "settled: what a former index had merged is never deleted",
            "return merged or self.settled(shard_id, version.settled_ids)",
            "return merged or 0",
        ),
        (
            "settled: what a former index had merged waits for the indexes of now",
            "        if held is None and generation > self.settled(shard_id, self._settled_ids):",
            "        if held is None:",
        ),
        (
            "settled: garbage takes a version for one that names the record of the latest",
            "return merged or self.settled(shard_id, version.settled_ids)",
            "return merged or self.settled(shard_id, self._settled_ids)",
        ),
        (
            "settled: garbage takes any record for one that the latest version names",
            "if record_id in named), default=0)",
            "), default=0)",
        ),
    ),
    *mutations(
        "memwal/rows/progress.py",
        "tests/jobs/garbage/test_garbage_settled.py",
        (
            "settled: garbage deletes what comes after the first that is listed",
            "    return min(listed, default=manifest.current_generation) - 1",
            "    return manifest.current_generation",
        ),
    ),
    *mutations(
        "memwal/jobs/garbage/apply/deletions.py",
        "tests/jobs/garbage/test_garbage_settled.py",
        (
            "settled: garbage leaves it to others to record what it needs",
            " or self.has_unrecorded",
            "",
        ),
    ),
    *mutations(
        "memwal/store/tables/view.py",
        "tests/jobs/garbage/test_garbage_settled.py",
        (
            "settled: status passes over what a former index had merged",
            "        settled = [shard for shard in view.shards if shard.settled_generation]",
            "        settled: list[ShardView] = []",
        ),
    ),
    *mutations(
        "memwal/run/former_merges.py",
        "tests/store/test_settled.py",
        (
            "settled: a name that comes to nothing makes the record before it forgotten",
            "proofs.name(view, record_id, _find_needed(known))",
            "proofs.name(view, record_id, ())",
        ),
    ),
    *mutations(
        "memwal/rows/progress.py",
        "tests/store/test_settled.py",
        (
            "settled: what is listed may be settled",
            "    return min(listed, default=manifest.current_generation) - 1",
            "    return manifest.current_generation",
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

_REAL = "tests/jobs/init/test_init.py"

_INIT = (
    *mutations(
        "memwal/jobs/init/plan.py",
        "tests/jobs/merge/test_formats.py -k legacy",
        (
            "init: a table in the legacy format is made ready",
            "    if view.is_legacy:",
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/merge/plan.py",
        "tests/jobs/merge/test_formats.py -k legacy",
        (
            "merge: a table in the legacy format is tried again and again",
            "    if view.is_legacy:",
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/init/plan.py",
        _REAL,
        (
            "init: a former MemWAL's rows are not in the way",
            "    if found.leftovers:",
            "    if False:",
        ),
        (
            "init: a key may move between shards",
            "    if key and moving in columns and not request.keys_stay:",
            "    if False:",
        ),
        (
            "init: the MemWAL comes before the key and the policy",
            "    return (*steps, *_plan_expire(view, request), Step.MEM_WAL)",
            "    return (Step.MEM_WAL, *steps, *_plan_expire(view, request))",
        ),
        (
            "init: another MemWAL is taken for the one that was asked for",
            "        if differing := list(_find_differences(view, request)):",
            "        if differing := []:",
        ),
    ),
    *mutations(
        "memwal/jobs/init/store.py",
        _REAL,
        (
            "init: generations of a former MemWAL are passed over",
            "            if listed := len(manifest.flushed_generations):",
            "            if (listed := 0):",
        ),
        (
            "init: a WAL of a former MemWAL is passed over",
            "            elif self._stores.wal.find_unflushed(manifest) is not None:",
            "            elif False:",
        ),
        (
            "init: commits on top of what was not looked at",
            "        return self._stores.tables.at(self._version)",
            "        return self._stores.tables.base()",
        ),
    ),
    *mutations(
        "memwal/store/shards/wal.py",
        _REAL,
        (
            "init: an entry above the replay position is in no generation",
            "            if not head.fence_sentinel and not is_flushed(manifest, head.generation):",
            "            if not head.fence_sentinel:",
        ),
    ),
    *mutations(
        "memwal/jobs/init/apply.py",
        _REAL,
        (
            "init: what Lance refuses is not looked at again",
            "            except (Unsupported, StoreUnavailable) as error:",
            "            except StoreUnavailable as error:",
        ),
    ),
)

QUIESCE: tuple[Mutation, ...] = _OBSTACLES + _PROOF + _INIT
