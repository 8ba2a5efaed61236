"""Mutations of the merge and of the snapshot job."""

from __future__ import annotations

from tests.simulation.mutation_list import Mutation, mutations

PLAN = "tests/jobs/merge/test_merge_plan.py"
FAKE = "tests/jobs/merge/test_merge.py -m 'not integration'"
APPLY = "tests/jobs/merge/test_merge_apply.py"
_PLAN = "memwal/jobs/merge/plan.py"
_APPLY = "memwal/jobs/merge/apply/shard.py"
_OLDER = "tests/jobs/merge/test_older_schema.py"

_PLANNED = mutations(
    _PLAN,
    PLAN,
    (
        "merge: a SEALED shard is merged",
        "    if work and shard.manifest.status is ShardStatus.SEALED:",
        "    if False:",
    ),
    (
        "merge: a hole above the watermark is passed",
        "        raise refuse_hole(shard, hole)",
        "        return",
    ),
    ("merge: a commit passes a hole", "if not (follows or request.allow_holes) or", "if"),
    (
        "merge: no bound on generations",
        "self.generations + generations <= self.limits.generations_per_commit_max",
        "True",
    ),
    (
        "merge: no bound on bytes",
        "self.size_bytes + size_bytes <= self.limits.bytes_per_commit_max",
        "True",
    ),
    ("merge: no bound on memory", "and memory.holds(self.held_bytes + held_bytes)", ""),
    ("merge: a generation needs no memory", "    if memory.holds(held):\n", "    if True:\n"),
    (
        "merge: an unknown size counts as nothing",
        "size = limits.bytes_per_commit_max if size is None else size",
        "size = 0 if size is None else size",
    ),
    (
        "merge: what is above the request is merged",
        "if until is None or g.generation <= until)",
        ")",
    ),
    (
        "merge: the index join is taken unasked",
        "return costs.index_allowed and facts",
        "return facts",
    ),
    (
        "merge: the index join needs no anchor in the base",
        "    if join is Join.INDEX:\n        return False",
        "    if join is Join.INDEX:\n        return True",
    ),
    (
        "merge: several generations need no anchor",
        "facts.generations == 1 or (facts.anchored and",
        "facts.generations >= 1 or (facts.anchored and",
    ),
    (
        "merge: a new anchor guards keys that Lance does not compare",
        "(facts.anchored and new_keys_are_compared(facts.key_types))",
        "facts.anchored",
    ),
    (
        "merge: a fold is committed without a guard",
        "    if not is_guarded(facts, Join.SCAN):",
        "    if False:",
    ),
    (
        "merge: tombstones stay out",
        "    ):\n        deletes = Deletes.SAME_COMMIT",
        "    ):\n        deletes = Deletes.NONE",
    ),
    (
        "merge: the order of generations is not checked",
        "    invariants.check_merge_order(\n        first_due(shard) - 1,\n"
        "        [g.generation for g in chosen],\n"
        "        holes_allowed=request.allow_holes,\n    )\n",
        "",
    ),
)

_SHARED_RULES = (
    *mutations(
        "memwal/rows/keys.py",
        PLAN,
        (
            "merge: every key type counts as compared",
            "    return not _UNCOMPARED_TYPES.intersection(key_types)",
            "    return True",
        ),
    ),
    *mutations(
        "memwal/rows/progress.py",
        PLAN,
        (
            "merge: an index of unknown age passes",
            "    if mem_wal_since_nanos is not None and mem_wal_since_nanos <= flushed_at_nanos:",
            "    if mem_wal_since_nanos is None or mem_wal_since_nanos <= flushed_at_nanos:",
        ),
        (
            "merge: generations older than the index pass",
            "    if mem_wal_since_nanos is not None and mem_wal_since_nanos <= flushed_at_nanos:",
            "    if mem_wal_since_nanos is not None:",
        ),
    ),
)

_TABLES = mutations(
    _PLAN,
    PLAN,
    ("merge: a table without a key is taken", "    if not view.primary_key:", "    if False:"),
    (
        "merge: a key with a quote in its name is taken",
        '        if "`" in name or \'"\' in name:',
        "        if False:",
    ),
)

_ORDER = mutations(
    "memwal/invariants.py",
    "tests/test_invariants.py",
    (
        "invariant 2: an empty commit passes",
        "    if not generations:\n",
        "    if False:\n",
    ),
    (
        "invariant 2: a generation may come again",
        "        if generation <= before:",
        "        if False:",
    ),
    (
        "invariant 2: a hole passes",
        "        if generation != before + 1 and not holes_allowed:",
        "        if False:",
    ),
    (
        "invariant 3: progress may fall",
        "        if proposed.get(shard, -1) < generation:",
        "        if False:",
    ),
    (
        "invariant 3: progress may get lost",
        "        if proposed.get(shard, -1) < generation:",
        "        if proposed.get(shard, generation) < generation:",
    ),
    (
        "invariant 3: a manifest need not be the next",
        "proposed.shard_id != current.shard_id or proposed.version != current.version + 1:",
        "proposed.shard_id != current.shard_id:",
    ),
    (
        "invariant 3: a manifest may be another shard's",
        "proposed.shard_id != current.shard_id or proposed.version",
        "proposed.version",
    ),
    (
        "invariant 3: a manifest's counters may fall",
        "        if getattr(proposed, name) < getattr(current, name):",
        "        if False:",
    ),
    (
        "invariant 4: maintenance may change the epoch",
        "    if proposed.writer_epoch != current.writer_epoch:",
        "    if False:",
    ),
)

_DONE = mutations(
    _APPLY,
    APPLY,
    ("merge: a run takes a table without a key", "        check_table(view)\n", ""),
    (
        "merge: what was planned before the last commit is taken for what is there",
        "if plan.mark == request.until_generation:",
        "if True:",
    ),
    (
        "merge: the lease is not asked before a commit",
        '        self.before_commit()\n        self.steps("commit")',
        '        self.steps("commit")',
    ),
    (
        "merge: the lease is not asked before a delete pass",
        '        self.before_commit()\n        self.steps("delete_pass")',
        '        self.steps("delete_pass")',
    ),
    (
        "merge: progress that fell is not noticed",
        "        if shard.merged_generation < self.to_generation:",
        "        if False:",
    ),
    (
        "merge: a table that was initialised again is not noticed on the way",
        "            shard = view.shards[0]\n            self.check_same_table(run, view, shard, request)\n",
        "            shard = view.shards[0]\n",
    ),
    (
        "merge: nor after a lost race",
        "                self.check_same_table(run, view, shard, request)\n                self.wait",
        "                self.wait",
    ),
    (
        "merge: nor at the start",
        "        self.check_same_table(run, view, shard, request)\n        while",
        "        while",
    ),
    (
        "merge: a run goes on with what is flushed meanwhile",
        "        while (plan := plan_commit(shard, bounded, self.limits))",
        "        while (plan := plan_commit(shard, request, self.limits))",
    ),
    (
        "merge: commits between delete pass and mark are not looked at",
        "        if version > view.version + 1:",
        "        if False:",
    ),
    (
        "merge: a commit after an error is not looked for",
        "                if shard.merged_generation >= start:",
        "                if False:",
    ),
    (
        "merge: a generation that is gone is retried for ever",
        "                if isinstance(error, Missing):",
        "                if False:",
    ),
    (
        "merge: faults have no bound",
        "                if faults >= self.limits.fault_attempts_max:",
        "                if False:",
    ),
    (
        "merge: waiting has no deadline",
        "self.limits.conflict_wait_seconds_max, deadline):",
        "self.limits.conflict_wait_seconds_max, 1e30):",
    ),
    (
        "merge: an outcome that can't be looked up is guessed",
        "            raise OutcomeUnknown(",
        "            raise LostRace(",
    ),
    (
        "merge: a fold of another prefix is used again",
        "    if fold is None or not same:",
        "    if fold is None:",
    ),
    (
        "merge: progress that proves nothing is believed",
        "    if shard.merged_generation > 0:",
        "    if True:",
    ),
)

_WATCH = (
    *mutations(
        "memwal/jobs/merge/apply/shard.py",
        "tests/jobs/merge/test_refresh_watch.py",
        (
            "watch: a lease that was claimed since the view is nothing",
            "        if token != self._seen_token:",
            "        if False:",
        ),
        (
            "watch: a refresh that holds the lease is nothing",
            "        if claim.job == LOWERING_JOB and self.leases.is_live(claim):",
            "        if False:",
        ),
        (
            "watch: a dead refresh holds for ever",
            "        if claim.job == LOWERING_JOB and self.leases.is_live(claim):",
            "        if claim.job == LOWERING_JOB:",
        ),
        (
            "watch: a merge goes on that lost its lease",
            "            self.leases.check(self.lease_token)\n",
            "",
        ),
    ),
    *mutations(
        "memwal/store/records/lease.py",
        "tests/jobs/merge/test_refresh_watch.py",
        (
            "watch: a refresh lasts as long as the merger's own lease would",
            "claim.released and claim.expires_at_nanos > self._clock.now_nanos()",
            "claim.released and claim.expires_at_nanos - claim.length_nanos + self._ttl_nanos"
            " > self._clock.now_nanos()",
        ),
    ),
    *mutations(
        "memwal/jobs/merge/unit.py",
        "tests/jobs/merge/test_merge_shared_command.py -k 'commits_nothing or commit_nothing'",
        ("merge: units don't know the lease", "            lease_token=table.lease_token,\n", ""),
        (
            "merge: units don't ask for the lease",
            "        watch.before_commit()\n",
            "",
        ),
        ("merge: a cancelled run commits", "        cancel.check()\n", ""),
    ),
    *mutations(
        _APPLY,
        "tests/jobs/merge/test_refresh_watch.py",
        ("watch: views are not watched", "        self.before_view()\n", ""),
    ),
)

_SIMULATED = (
    *mutations(
        _PLAN,
        "",
        (
            "simulated: a fold is never cut for want of an anchor",
            "    if not is_guarded(facts, Join.SCAN):",
            "    if False:",
        ),
        (
            "simulated: keys that Lance does not compare count as anchors",
            "(facts.anchored and new_keys_are_compared(facts.key_types))",
            "facts.anchored",
        ),
        (
            "simulated: newest first",
            "    for generation in choose_generations(shard, request):",
            "    for generation in reversed(choose_generations(shard, request)):",
        ),
        (
            "simulated: tombstones stay out",
            "    ):\n        deletes = Deletes.SAME_COMMIT",
            "    ):\n        deletes = Deletes.NONE",
        ),
    ),
    *mutations(
        _APPLY,
        "",
    ),
)

_ON_LANCE = "tests/faults/test_merge_races.py tests/faults/test_merge_midrun.py -m 'not spark'"
_FOLD = (
    *mutations(
        "memwal/rows/fold.py",
        "tests/rows/test_fold.py",
        ("fold: a NULL key is taken", "        if column.null_count:", "        if False:"),
        ("fold: tombstones win nothing", "    live = newest[~dead[newest]]", "    live = newest"),
        (
            "fold: rows out of address order",
            "    if len(flat) > 1 and not bool(np.all(flat[1:] > flat[:-1])):",
            "    if False:",
        ),
        (
            "fold: the oldest row wins",
            "    newest[np.maximum.reduceat(order, starts)] = True",
            "    newest[np.minimum.reduceat(order, starts)] = True",
        ),
        (
            "fold: the oldest row wins, by hash",
            'aggregate([("place", "max")])["place_max"]',
            'aggregate([("place", "min")])["place_min"]',
        ),
        (
            "fold: deleted keys are anchors",
            "        kept = some.filter(pa.array(~deleted.contains(some.columns)))",
            "        kept = some",
        ),
        (
            "fold: keys of any generation are anchors",
            "_anchors(columns, dead, len(ordered[0]))",
            "_anchors(columns, dead, len(columns))",
        ),
        (
            "fold: a key and its place overlap in one number",
            "    if int(offsets.max()).bit_length() + int(bits) <= 64:",
            "    if int(offsets.max()).bit_length() + int(bits) <= 65:",
        ),
    ),
    *mutations(
        "memwal/rows/align.py",
        "tests/rows/test_align.py",
        (
            "align: `_tombstone` is a column",
            "for c in generation if c.name != layout.TOMBSTONE}",
            "for c in generation}",
        ),
        (
            "align: a changed name is no rename",
            "    if old.name == column.name:",
            "    if True:",
        ),
        (
            "align: a type that narrows is taken",
            "    if old.type_text in column.former_types and is_exact(old.type_text, "
            "column.type_text):",
            "    if old.type_text in column.former_types:",
        ),
        (
            "align: a type that the column never had is taken",
            "    if old.type_text in column.former_types and is_exact(old.type_text, "
            "column.type_text):",
            "    if is_exact(old.type_text, column.type_text):",
        ),
        (
            "align: a key is converted",
            "            if name in settled.changes or name in settled.defaults:",
            "            if False:",
        ),
        (
            "align: a required column may be missing",
            "    return column.nullable or column.default is not None",
            "    return True",
        ),
        (
            "align: nested fields match by name alone",
            "tuple((c.field_id, c.name, _shape(c)) for c in column.children)",
            "tuple((c.name, _shape(c)) for c in column.children)",
        ),
        (
            "align: a cast to a narrower type is taken",
            "            if not is_exact(one.old, one.new):",
            "            if False:",
        ),
    ),
    *mutations(
        "memwal/rows/align.py",
        "tests/jobs/merge/test_merge_shapes.py -k 'rename or dropped or column'",
        (
            "align: a rename needs no proof",
            "            if is_proven(rename):",
            "            if True:",
        ),
        (
            "align: a cast needs no proof",
            "        cast = [recast for recast in self.recasts if is_proven(recast)]",
            "        cast = list(self.recasts)",
        ),
    ),
    *mutations(
        "memwal/rows/align.py",
        _OLDER,
        (
            "align: a filter is asked of values that are not converted",
            "        return frozenset((*renamed, *self.changes, *self.defaults))",
            "        return frozenset(renamed)",
        ),
    ),
    *mutations(
        "memwal/store/tables/generations.py",
        _OLDER,
        (
            "older rows: no default in place of NULL",
            "        if one.name in alignment.defaults:",
            "        if False:",
        ),
        (
            "older rows: versions that are gone show a cast",
            "            if version != newer - 1:",
            "            if False:",
        ),
    ),
    *mutations(
        "memwal/store/tables/policy_rows.py",
        _OLDER,
        (
            "policy: an operand that says nothing gets the default",
            "    plain = replace(source, alignment=source.alignment.without_defaults())",
            "    plain = source",
        ),
    ),
    *mutations(
        "memwal/rows/policy_fold.py",
        _OLDER,
        (
            "policy: a result stays NULL where the column has a default",
            "            if default is not None and not field.nullable:",
            "            if False:",
        ),
    ),
    *mutations(
        "memwal/rows/convert.py",
        "tests/rows/test_convert.py",
        (
            "convert: what lies behind NULL is looked at",
            "    if not array.null_count:\n        return items",
            "    if True:\n        return items",
        ),
    ),
    *mutations(
        "memwal/jobs/merge/store/commits.py",
        _ON_LANCE,
        (
            "merge: Lance retries a stale commit",
            "builder.conflict_retries(0).use_index",
            "builder.use_index",
        ),
    ),
    *mutations(
        "memwal/jobs/merge/plan.py",
        "tests/faults/test_merge_midrun.py -k no_version",
        (
            "merge: deletes alone, if many, are a commit without their mark",
            "        or not facts.live_rows\n",
            "",
        ),
    ),
    *mutations(
        "memwal/jobs/merge/store/base_table.py",
        "tests/faults/test_merge_midrun.py",
        (
            "merge: deletes go ahead of rows that can't be read",
            "        if not self.streams:\n            self.read_member",
            "        if False:\n            self.read_member",
        ),
    ),
    *mutations(
        "memwal/jobs/merge/store/base_table.py",
        "tests/jobs/merge/test_unknown_sizes.py -k estimated",
        (
            "merge: what is estimated is held in memory",
            "sizes = [None if g.estimated else g.in_memory_bytes for g in self.generations]",
            "sizes = [g.in_memory_bytes for g in self.generations]",
        ),
    ),
    *mutations(
        "memwal/jobs/merge/plan.py",
        "tests/jobs/merge/test_unknown_sizes.py -k estimated",
        (
            "merge: what is estimated shares commits",
            "sizes = [None if g.estimated else g.in_memory_bytes for g in pending]",
            "sizes = [g.in_memory_bytes for g in pending]",
        ),
    ),
    *mutations(
        "memwal/store/tables/datasets.py",
        "tests/jobs/merge/test_unknown_sizes.py -k packed",
        (
            "merge: packed columns count as little as their file",
            "        size = max(size, rows * _fixed_bytes(dataset.schema))",
            "        pass",
        ),
    ),
    *mutations(
        "memwal/store/tables/datasets.py",
        "tests/store/test_commit_races.py -k expire",
        (
            "merge: an expired version is taken for no table",
            '            raise LostRace(\n                f"{self._uri}: version {version} was expired',
            '            raise NotATable(\n                f"{self._uri}: version {version} was expired',
        ),
    ),
    *mutations(
        "memwal/jobs/merge/apply/shard.py",
        "tests/store/test_commit_races.py -k fresh_view",
        (
            "merge: a fold is not put on the fresh view",
            "            fold = fold.rebase(view)\n",
            "            pass\n",
        ),
    ),
    *mutations(
        "memwal/jobs/merge/store/base_table.py",
        "tests/jobs/merge/test_merge_shapes.py -k test_rows_that_are_not_found_again_fail_the_commit",
        (
            "merge: rows that are not found again don't fail the commit",
            "        if left:\n            raise OSError",
            "        if False:\n            raise OSError",
        ),
    ),
    *mutations(
        "memwal/jobs/merge/store/commits.py",
        _ON_LANCE,
        (
            "merge: a conflict is a fault like any other",
            "        if _CONFLICT.search(str(error)):\n            raise LostRace(text) from None",
            "        if False:\n            raise LostRace(text) from None",
        ),
    ),
)

_SNAPSHOT_APPLY = "tests/jobs/snapshot/test_snapshot_apply.py"
_SNAPSHOT = (
    *mutations(
        "memwal/jobs/snapshot/plan.py",
        _SNAPSHOT_APPLY,
        (
            "snapshot: shards that can't be read are left out",
            "    if view.broken:",
            "    if False:",
        ),
        (
            "snapshot: a shard that lost its entry is not repaired",
            "        if landed.merged.get(shard, -1) < generation",
            "        if landed.merged.get(shard, generation) < generation",
        ),
        (
            "snapshot: the last of several versions decides what to repair",
            "            highest[shard] = max(highest.get(shard, 0), generation)",
            "            highest[shard] = generation",
        ),
        (
            "snapshot: however many shards go inline",
            "Storage.INLINE if num_shards <= limits.inline_shards_max else",
            "Storage.INLINE if True else",
        ),
    ),
    *mutations(
        "memwal/jobs/snapshot/apply.py",
        _SNAPSHOT_APPLY,
        (
            "snapshot: the lease is not asked",
            "        else:\n            self.before_commit()\n",
            "",
        ),
        (
            "snapshot: a repair does not ask for the lease",
            "            self._ask_before_repair(merged)\n",
            "",
        ),
        (
            "snapshot: repairs have no bound",
            "            if run.repairs >= self.limits.repairs_max:",
            "            if False:",
        ),
        (
            "snapshot: a commit that changed the data passes",
            "        if before != after:",
            "        if False:",
        ),
        (
            "snapshot: only the version before the one that landed is looked at",
            "        since = range(landed - 1, run.floor - 1, -1)",
            "        since = range(landed - 1, landed - 2, -1)",
        ),
        (
            "snapshot: shards from before a restore are stored beside its progress",
            "            self._check_unreplaced(view, version)\n",
            "",
        ),
        (
            "snapshot: what a user's restore lowered is raised",
            "            if turned_back is not False:",
            "            if False:",
        ),
        (
            "snapshot: what it lowered before a restore is raised after it",
            "        known = [run.states[version] for version in since if version in run.states]",
            "        known = list(run.states.values())",
        ),
        (
            "snapshot: a version that nobody can tell of may be no restore",
            "            if turned_back is not False:",
            "            if turned_back:",
        ),
        (
            "snapshot: a commit without a reply did not land",
            "        self._find_landed(run, version)\n",
            "",
        ),
        (
            "snapshot: the entry is not read again at the last moment",
            "        version = self.views.table_version()",
            "        version = view.version",
        ),
        (
            "snapshot: what an earlier attempt lowered is left to a fresh snapshot",
            "        if fell or not wanted.is_fresh:",
            "        if not wanted.is_fresh:",
        ),
        (
            "snapshot: it is said to be of the time when it is written",
            "                return self._attempt(run, self.read())",
            "                view = self.read()\n"
            "                run.taken_at_millis = self.clock.now_nanos() // 10**6\n"
            "                return self._attempt(run, view)",
        ),
        (
            "snapshot: a repair is said to be of the same time as what it repairs",
            "        run.taken_at_millis -= 1 if",
            "        run.taken_at_millis -= 0 if",
        ),
        (
            "snapshot: it is confirmed before what it lowered is raised",
            "            while fell := self._find_lowered(run, version):",
            "            self.snapshots.confirm(\n"
            "                taken_at_millis=run.taken_at_millis, index_uuid=run.index_uuid,\n"
            "                data=wanted.data,\n"
            "            )\n"
            "            while fell := self._find_lowered(run, version):",
        ),
        (
            "snapshot: it is confirmed though nobody can tell what it lowered",
            "            if not run.unseen:\n",
            "            if True:\n",
        ),
        (
            "snapshot: the lease is taken when all is done",
            "        self.take_lease()\n        return self._refresh(run)",
            "        done = self._refresh(run)\n        self.take_lease()\n        return done",
        ),
        (
            "snapshot: what was read before the lease was taken is written",
            "                return self._attempt(run, self.read())",
            "                return self._attempt(run, run.view)",
        ),
        (
            "snapshot: manifests that were read in groups are mixed up",
            "for group in read_groups(groups) for found in group]",
            "for group in read_groups(groups[::-1]) for found in group]",
        ),
    ),
    *mutations(
        "memwal/jobs/snapshot/apply.py",
        "",
        (
            "simulated: a snapshot is not repaired",
            "            while fell := self._find_lowered(run, version):",
            "            while fell := {}:",
        ),
    ),
    *mutations(
        "memwal/format/codec.py",
        "tests/format/test_codec.py",
        (
            "snapshot: a repair may lower progress",
            "        entry.generation = max(entry.generation, generation)",
            "        entry.generation = generation",
        ),
    ),
)

_LINEAGE = mutations(
    "memwal/store/tables/generations.py",
    "tests/store/test_lineage.py",
    (
        "lineage: a version of the same number in a table made anew is the known one",
        "    if known is None or known.newest.get(version) != at_nanos:",
        "    if known is None or version not in known.newest:",
    ),
    (
        "lineage: a version without the index is passed",
        "            if older is None or not older.has_mem_wal:",
        "            if older is None:",
    ),
)

_OLDER = "tests/jobs/merge/test_older_schema.py"
MERGE: tuple[Mutation, ...] = (
    *_PLANNED,
    *_LINEAGE,
    *_SHARED_RULES,
    *_TABLES,
    *_ORDER,
    *_DONE,
    *_FOLD,
    *_SNAPSHOT,
    *_WATCH,
    *_SIMULATED,
)
