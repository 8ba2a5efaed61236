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

_PROOF = (
    *mutations(
        "memwal/run/settled.py",
        "tests/jobs/quiesce/test_proof_races.py",
        (
            "settled: a record is stored wherever its name landed",
            "    if not proofs.follows(view, record_id):",
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/store/settled.py",
        "tests/store/test_settled.py",
        (
            "settled: a name counts that did not land right after the view",
            " and record_id in named",
            "",
        ),
    ),
    *mutations(
        "memwal/store/settled.py",
        "tests/jobs/quiesce/test_proof_races.py",
        (
            "settled: a version need not name the record",
            "        named = view.settled_ids[:_NAMED_MAX]\n",
            "        named = [f.path[-41:-5] for f in self._objects.list(layout.SETTLED)]\n",
        ),
        (
            "settled: a shard that starts over is the same one",
            "found is not None and found.manifest_digest == self._digest(shard, found):",
            "found is not None:",
        ),
    ),
    *mutations(
        "memwal/store/settled.py",
        "tests/store/test_settled.py",
        (
            "settled: any number is a count",
            "    if type(value) is not int or not 0 <= value <= layout.U64_MAX:",
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/rows/settled.py",
        "tests/jobs/quiesce/test_proof_races.py",
        (
            "settled: what is not merged",
            "            generation=min(first_due(shard), shard.manifest.current_generation) - 1,",
            "            generation=shard.manifest.current_generation - 1,",
        ),
    ),
    *mutations(
        "memwal/store/former_indexes.py",
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
            "if seen.expirable and not any(map(is_unrecorded, shards)):",
            "if seen.expirable:",
        ),
    ),
    *mutations(
        "memwal/jobs/garbage/kinds/shard_manifest.py",
        "tests/store/test_settled.py",
        (
            "settled: garbage deletes the manifest that a record cites",
            "    if shard.settled is not None:",
            "    if False:",
        ),
        (
            "settled: garbage deletes manifests that show what is not recorded",
            "        cited = shard.settled.settled_by or 0",
            "        cited = shard.settled.settled_by or 10**9",
        ),
    ),
    *mutations(
        "memwal/run/settled.py",
        "tests/store/test_settled.py",
        (
            "settled: a name that comes to nothing makes the record before it forgotten",
            "proofs.name(view, record_id, _find_needed(known))",
            "proofs.name(view, record_id, ())",
        ),
    ),
    *mutations(
        "memwal/rows/settled.py",
        "tests/store/test_settled.py",
        (
            "settled: what is listed may be settled",
            "min(generation, first - 1)",
            "generation",
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
        "memwal/jobs/merge/plan/shard.py",
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
            "    return (*steps, Step.MEM_WAL)",
            "    return (Step.MEM_WAL, *steps)",
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
            "            if listed:",
            "            if False:",
        ),
        (
            "init: a WAL of a former MemWAL is passed over",
            "            elif self._has_rows_above(shard_id, start):",
            "            elif False:",
        ),
        (
            "init: commits on top of what was not looked at",
            "        return self._stores.tables.at(self._version)",
            "        return self._stores.tables.base()",
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
