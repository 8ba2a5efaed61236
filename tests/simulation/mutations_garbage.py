"""Mutations of the garbage job: what it plans, what it goes by, what it does."""

from __future__ import annotations

from tests.simulation.mutation_list import Change, Mutation, mutations

PLAN = "tests/jobs/garbage/test_garbage_plan.py"
APPLY = "tests/jobs/garbage/test_garbage_apply.py"
_PLAN = "memwal/jobs/garbage/plan.py"
_MODEL = "memwal/jobs/garbage/model.py"

_HEADS = mutations(
    "memwal/jobs/garbage/store.py",
    "tests/jobs/garbage/test_wal_heads.py",
    (
        "garbage: what others remembered of WAL entries lets them go",
        "            if entry.read and not self._heads.is_confirmed(entry)",
        "            if False",
    ),
)

_LIMITS = mutations(
    _PLAN,
    f"{PLAN} -k 'short_times or expirable or without_any_progress'",
    (
        "garbage: a short retention is not refused",
        "retention_seconds is not None and retention_seconds < RETENTION_SECONDS_MIN:",
        "False:",
    ),
    (
        "garbage: a short grace is not refused",
        "limits.grace_seconds < GRACE_SECONDS_MIN:",
        "False:",
    ),
    (
        "garbage: versions of branches count as expirable",
        "        if v.on_main\n        and v.version != latest",
        "        if v.version != latest",
    ),
    (
        "garbage: the latest version counts as expirable",
        "        and v.version != latest\n",
        "",
    ),
    (
        "garbage: detached versions count as expirable",
        "        and not layout.is_detached(v.version)\n",
        "",
    ),
    (
        "garbage: versions that can't be read count as expirable",
        "        and v.problem is None\n",
        "",
    ),
    (
        "garbage: young versions count as expirable",
        "        and v.timestamp_nanos < cutoff\n",
        "",
    ),
    (
        "garbage: shards that were never merged don't keep versions",
        "    waiting = [s.shard_id for s in view.shards if s.pending and s.merged_generation == 0]",
        "    waiting: list[ShardId] = []",
    ),
    (
        "garbage: shards that can't be read don't keep versions",
        "    return (*waiting, *(b.shard_id for b in view.broken))",
        "    return tuple(waiting)",
    ),
)

_SHARDS = mutations(
    _PLAN,
    PLAN,
    (
        "garbage: a shard that was not listed is planned all the same",
        'problem=Refused("its folder was not listed")',
        "problem=None",
    ),
    (
        "garbage: folders of a shard without a manifest go",
        "            action=Action.KEEP,\n            reason=reason,",
        "            action=Action.DELETE,\n            reason=reason,",
    ),
    (
        "garbage: a SEALED shard is touched",
        "        if self._manifest.status is not ShardStatus.ACTIVE:",
        "        if False:",
    ),
    (
        "garbage: a shard that can't be read is touched",
        "        if self._found.problem is not None:\n            return f",
        "        if False:\n            return f",
    ),
    (
        "garbage: versions that can't be read hold nothing",
        "        if self.unreadable is not None:",
        "        if False:",
    ),
    (
        "garbage: a shard that no retained version knows goes",
        '            return "no retained version shows that it was merged"',
        "            return None",
    ),
    (
        "garbage: retained versions don't hold",
        "        merged = lowest.merged.get(shard_id, 0)\n        if generation > merged:",
        "        merged = lowest.merged.get(shard_id, 0)\n        if False:",
    ),
    (
        "garbage: indexes don't hold",
        "            if reached < generation:",
        "            if False:",
    ),
    (
        "garbage: an index that is not recorded does not hold",
        "            if reached is None:\n                return",
        "            if reached is None:\n                continue\n                return",
    ),
    (
        "garbage: listed generations are dropped whatever holds them",
        "why = shut or self._gates.held(self._shard.shard_id, generation.generation)",
        "why = shut",
    ),
    (
        "garbage: folders are deleted whatever holds their number",
        "        if held is not None:",
        "        if False:",
    ),
    (
        "garbage: listed folders are deleted",
        "            if folder.name not in self._listed:",
        "            if True:",
    ),
    (
        "garbage: any old manifest will do for the one from before the grace",
        "past if past is not None and past.version == wanted else None",
        "past",
    ),
    (
        "garbage: generation 0 is a number as any other",
        "        if number < 1:",
        "        if False:",
    ),
    (
        "garbage: a flush in progress may go",
        "        if number >= current:",
        "        if False:",
    ),
    (
        "garbage: without a manifest from before the grace folders go",
        "        past = self._past\n        if past is None:\n"
        '            return "no manifest is older than the grace"\n'
        "        if folder",
        "        past = self._past\n        if past is None:\n"
        "            return None\n"
        "        if folder",
    ),
    (
        "garbage: the past manifest is not asked whether it named the folder",
        "        if folder.name in self._listed_before:",
        "        if False:",
    ),
    (
        "garbage: a number flushed within the grace may go",
        "        if number >= past.current_generation:",
        "        if False:",
    ),
    (
        "garbage: a folder with a young file goes",
        "        if newest_of(folder.files) > self._cutoff:",
        "        if False:",
    ),
    (
        "garbage: the table's part of a folder goes last",
        "for stage in (first, rest) if stage)",
        "for stage in (rest, first) if stage)",
    ),
)

# The same gates once more, as a run meets them.
_SIMULATED = (
    *mutations(
        _PLAN,
        "",
        (
            "simulated: retained versions don't hold a generation",
            "        merged = lowest.merged.get(shard_id, 0)\n        if generation > merged:",
            "        merged = lowest.merged.get(shard_id, 0)\n        if False:",
        ),
        (
            "simulated: neither do the latest version and the others",
            "return self.version_holds(shard_id, generation) or self",
            "return self",
        ),
        (
            "simulated: indexes don't hold a generation",
            "            if reached < generation:",
            "            if False:",
        ),
        (
            "simulated: an index that is not recorded does not hold",
            "            if reached is None:\n                return",
            "            if reached is None:\n                continue\n                return",
        ),
        (
            "simulated: the past manifest is not asked",
            "        if folder.name in self._listed_before:",
            "        if False:",
        ),
        (
            "simulated: an unfinished claim holds no WAL",
            " or _claim_holds(entry, claims)",
            "",
        ),
    ),
    *mutations(
        _MODEL,
        "",
        (
            "simulated: no grace for files",
            "    return now_nanos - round(limits.grace_seconds * 1e9)",
            "    return now_nanos",
        ),
    ),
    Mutation(
        # A sentinel names no generation, so that the gate for that stands behind it.
        name="simulated: sentinels go",
        changes=(
            Change(
                file=_PLAN, before="        if entry.fence_sentinel:", after="        if False:"
            ),
            Change(
                file=_PLAN,
                before="        if entry.generation is None or entry.generation < 1:\n"
                '            return "does not',
                after="        if entry.generation is None or entry.generation < 1:\n"
                '            return None\n            return "does not',
            ),
        ),
    ),
    Mutation(
        # Three gates and the choice of what is read keep what is not covered: all of them.
        name="simulated: WAL entries go that no generation covers",
        changes=(
            Change(
                file=_PLAN, before="        if entry.position > replay:", after="        if False:"
            ),
            Change(
                file=_PLAN,
                before="        if entry.position > self._manifest.wal_entry_position_last_seen:",
                after="        if False:",
            ),
            Change(
                file=_PLAN,
                before="        if entry.position > wal_floor(past):",
                after="        if False:",
            ),
            Change(
                file=_PLAN,
                before="        if entry.generation >= self._manifest.current_generation:",
                after="        if False:",
            ),
            Change(
                file=_PLAN,
                before="        return self._gates.version_holds(self._shard.shard_id, "
                "entry.generation)",
                after="        return None",
            ),
            Change(
                file=_MODEL,
                before="    last = min(wal_floor(latest), wal_floor(past))",
                after="    last = max(positions)",
            ),
        ),
    ),
    Mutation(
        name="simulated: the highest WAL position goes",
        changes=(
            Change(
                file=_PLAN,
                before="        if entry.position == highest:",
                after="        if False:",
            ),
            Change(
                file=_MODEL,
                before="(p for p in positions if p <= last and p != highest)",
                after="(p for p in positions if p <= last)",
            ),
            Change(
                file=_PLAN, before="        if entry.fence_sentinel:", after="        if False:"
            ),
            Change(
                file=_PLAN,
                before="        if entry.generation is None or entry.generation < 1:\n"
                '            return "does not',
                after="        if entry.generation is None or entry.generation < 1:\n"
                '            return None\n            return "does not',
            ),
        ),
    ),
)

_WAL = mutations(
    _PLAN,
    f"{PLAN} -k 'wal or claim or stalled or entries or unknown'",
    ("wal: entries go unasked", "        if self._limits.wal:", "        if True:"),
    (
        "wal: entries of a closed shard go",
        "                shut\n                or self._wal_held(entry, highest, past, numbers)",
        "                self._wal_held(entry, highest, past, numbers)",
    ),
    (
        "wal: entries above the replay position go",
        "        if entry.position > replay:",
        "        if False:",
    ),
    (
        "wal: entries above the last position seen go",
        "        if entry.position > self._manifest.wal_entry_position_last_seen:",
        "        if False:",
    ),
    (
        "wal: the highest position goes",
        "        if entry.position == highest:",
        "        if False:",
    ),
    (
        "wal: entries go without a manifest from before the grace",
        "        if past is None:\n"
        '            return "no manifest is older than the grace"\n'
        "        if entry",
        "        if past is None:\n            return None\n        if entry",
    ),
    (
        "wal: entries that were covered within the grace go",
        "        if entry.position > wal_floor(past):",
        "        if False:",
    ),
    (
        "wal: young entries go",
        "        if entry.file.modified_at_nanos > self._cutoff:",
        "        if False:",
    ),
    (
        "wal: entries that can't be read go",
        "        if entry.problem is not None:",
        "        if False:",
    ),
    ("wal: entries that were not looked at go", "        if not entry.read:", "        if False:"),
    ("wal: sentinels go", "        if entry.fence_sentinel:", "        if False:"),
    (
        "wal: entries without a generation go",
        '            return "does not say which generation covers it"',
        "            return None",
    ),
    (
        "wal: entries go before their generation",
        "        if entry.generation in numbers:",
        "        if False:",
    ),
    (
        "wal: entries of generations to come go",
        "        if entry.generation >= self._manifest.current_generation:",
        "        if False:",
    ),
    (
        "wal: retained versions don't hold entries",
        "        return self._gates.version_holds(self._shard.shard_id, entry.generation)",
        "        return None",
    ),
    (
        "wal: what lies below an entry that can't be read goes",
        "                or _unknown_holds(entry, unknown)\n",
        "",
    ),
    (
        "wal: an unfinished claim holds nothing",
        " or _claim_holds(entry, claims)",
        "",
    ),
)

_COVERING = mutations(
    "memwal/indexes.py",
    PLAN,
    ("garbage: maintained indexes only, though none is named", " or not named\n", "\n"),
)

_MODELLED = mutations(
    _MODEL,
    PLAN,
    (
        "garbage: a young manifest is passed over on the way to the past one",
        "            break\n        found = stored.version",
        "            continue\n        found = stored.version",
    ),
    (
        "wal: the highest position is worth reading",
        "(p for p in positions if p <= last and p != highest)",
        "(p for p in positions if p <= last)",
    ),
    ("wal: oldest first, so that sentinels fill a run", "highest), reverse=True))", "highest)))"),
    (
        "wal: what was seen last is no bound",
        "    return min(manifest.replay_after_wal_entry_position, "
        "manifest.wal_entry_position_last_seen)",
        "    return manifest.replay_after_wal_entry_position",
    ),
    (
        "wal: entries that were not read prove a claim finished",
        "    known = [w for w in wal if _is_known(w)]",
        "    known = [w for w in wal if w.writer_epoch is not None]",
    ),
    (
        "wal: a sentinel ends a claim",
        "    with_rows = {w.writer_epoch for w in known if not w.fence_sentinel}",
        "    with_rows = {w.writer_epoch for w in known}",
    ),
    (
        "wal: a claim holds nothing while no newer sentinel is known",
        "            return dict.fromkeys(stored, epoch)",
        "            return held",
    ),
    (
        "garbage: a version that can't be read is passed over",
        "        if found.problem is not None:",
        "        if False:",
    ),
    (
        "garbage: trouble in finding versions is passed over",
        "    for problem in evidence.problems:",
        "    for problem in ():",
    ),
    (
        "garbage: the latest version need not be among those found",
        "    if not any(v.on_main and v.version == version for v in evidence.versions):",
        "    if False:",
    ),
    ("garbage: an empty folder is old", "default=layout.U64_MAX)", "default=0)"),
)

_ORPHANS = mutations(
    "memwal/jobs/garbage/kinds/orphan.py",
    PLAN,
    (
        "garbage: what was staged a moment ago goes",
        "        old = file.modified_at_nanos <= cutoff",
        "        old = True",
    ),
    (
        "garbage: lost snapshots go though versions can't be read",
        "        if unreadable is not None:\n            why: str | None",
        "        if False:\n            why: str | None",
    ),
    (
        "garbage: a snapshot goes that a version names",
        "        elif named is not None:",
        "        elif False:",
    ),
    (
        "garbage: young snapshots go",
        "        elif found.file.modified_at_nanos > cutoff:",
        "        elif False:",
    ),
    (
        "adoption: unasked",
        "    if not limits.adopt_orphans:\n        shut",
        "    if False:\n        shut",
    ),
    (
        "adoption: though versions can't be read",
        "    elif unreadable is not None:",
        "    elif False:",
    ),
    ("adoption: while a version has the index", "    elif holding is not None:", "    elif False:"),
    (
        "adoption: of a shard that can't be read",
        "    if found.problem is not None:\n        return f",
        "    if False:\n        return f",
    ),
    ("adoption: of a shard with nothing known in it", "    if not found.files:", "    if False:"),
    (
        "adoption: while a writer may be at work",
        "    if newest_of(found.files) > cutoff:",
        "    if False:",
    ),
    (
        "adoption: manifests go first",
        "for stage in (first, second, wal, last) if stage)",
        "for stage in (last, first, second, wal) if stage)",
    ),
)

_INGESTS = mutations(
    "memwal/jobs/garbage/kinds/ingest.py",
    "tests/jobs/garbage/test_garbage_ingest_plan.py",
    (
        "staged: what may be staged at this moment goes",
        'None if given_up else f"may be staged by a run that goes on: {limit}",',
        "None,",
    ),
    (
        "staged: what an unfinished ingest needs goes",
        'None if given_up else f"needed to finish its ingest, by the same command: {limit}",',
        "None,",
    ),
    (
        "staged: idle is counted from the folder's own files",
        "    given_up = newest_of(every) <=",
        "    given_up = newest_of(rows.files) <=",
    ),
    (
        "staged: what can't be read says nothing",
        "    if found.problem is not None:",
        "    if False:",
    ),
    (
        "staged: rows that the plan names are another run's",
        "    if found.named.isdisjoint(file.path for file in rows.files):",
        "    if True:",
    ),
    ("staged: every planned ingest is finished", "    if found.finished:", "    if True:"),
    (
        "staged: finished rows go within the grace",
        '"finished, but younger than the grace" if newest_of(every) > cutoff else None,',
        "None,",
    ),
    (
        "staged: another run's rows go within the grace",
        '"younger than the grace" if newest_of(rows.files) > cutoff else None,',
        "None,",
    ),
    (
        "staged: the latest round goes whole",
        "        if found.number < latest.get(found.ingest_id, 0):",
        "        if found.number <= latest.get(found.ingest_id, 0):",
    ),
    (
        "staged: a round without a plan has followed",
        "        if found.planned:\n            latest",
        "        if True:\n            latest",
    ),
    (
        "staged: rounds of one ingest follow those of another",
        "latest.get(found.ingest_id, 0):",
        "max(latest.values(), default=0):",
    ),
    (
        "staged: a round that was followed goes within the grace",
        'younger than the grace" if young else None,',
        'younger than the grace" if False else None,',
    ),
)

_DONE = (
    *mutations(
        "memwal/jobs/garbage/apply.py",
        APPLY,
        (
            "drop: a shard that was sealed meanwhile is touched",
            "        if current.status is not ShardStatus.ACTIVE:",
            "        if False:",
        ),
        (
            "drop: a lost race is the end",
            "                    self._wait(attempt)\n                    continue",
            "                    self._wait(attempt)\n                    break",
        ),
        (
            "drop: the lease is not asked",
            '        self.before_commit()\n        self.steps("before_drop")',
            '        self.steps("before_drop")',
        ),
        (
            "drop: nothing more is dropped than that",
            'if f"{folder}/{g.path}" not in unwanted',
            "if False",
        ),
        (
            "delete: the lease is not asked",
            '            self.before_commit()\n            self.steps("before_delete")',
            '            self.steps("before_delete")',
        ),
        (
            "delete: a stage follows one that failed",
            "if depth < len(d.stages) and d.path not in failed",
            "if depth < len(d.stages)",
        ),
        (
            "delete: refused objects count as gone",
            "            if file.path in refused:",
            "            if False:",
        ),
        (
            "delete: objects are not bounded in a call",
            "range(0, len(batch), self.limits.delete_call_objects_max)",
            "range(0, len(batch), max(1, len(batch)))",
        ),
    ),
    *mutations(
        "memwal/jobs/garbage/apply.py",
        PLAN,
        (
            "delete: an item's objects are not checked",
            '    if file.path != path and not file.path.startswith(f"{path}/"):',
            "    if False:",
        ),
        ("delete: items are not checked", "        check_item(item)", "        pass"),
        (
            "delete: a generation's path need not have its number",
            "layout.parse_generation_folder(name) == item.generation is not None:",
            "True:",
        ),
        (
            "delete: a WAL entry's path need not be one",
            "layout.parse_wal_entry_name(name) is not None and item.kind",
            "item.kind",
        ),
    ),
    *mutations(
        "memwal/jobs/garbage/apply.py",
        "",
        (
            "simulated: the writer's epoch is bumped by a drop",
            "        landed = self.manifests.commit(current, proposed)",
            "        landed = self.manifests.commit(\n            current, "
            "replace(proposed, writer_epoch=proposed.writer_epoch + 1)\n        )",
        ),
    ),
)

_EVIDENCE = "tests/jobs/garbage/test_garbage.py -k"
_FOUND = (
    *mutations(
        "memwal/jobs/garbage/store.py",
        f"{_EVIDENCE} 'strangers or snapshot_that_lost or wal_entries_wait'",
        (
            "evidence: any lone index file is a snapshot",
            "        return all(mark in tail for mark in _SNAPSHOT_MARKS)",
            "        return True",
        ),
        (
            "evidence: an index folder need not be named by a UUID",
            "            and _is_uuid(name)\n",
            "",
        ),
        (
            "evidence: a folder with more than a snapshot in it is one",
            "            if len(files) == 1\n            and",
            "            if",
        ),
    ),
    *mutations(
        "memwal/jobs/garbage/store_versions.py",
        f"{_EVIDENCE} 'branch or detached or unreadable or cache or made_again'",
        (
            "evidence: branches are not looked at",
            "        for info in self._objects.list(layout.BRANCHES):",
            "        for info in ():",
        ),
        (
            "evidence: branches that can't be found are passed over",
            "        problems += self._missing_branches(files)",
            "        problems += ()",
        ),
        (
            "evidence: generations of a branch are branches",
            'if found and "/" not in name and not _is_generation(branch):',
            'if found and "/" not in name:',
        ),
        (
            "evidence: a version that is torn is passed over",
            "            return RetainedVersion(**about, problem=str(error))"
            "  # type: ignore[arg-type]",
            "            return None",
        ),
        (
            "evidence: a manifest under a name that is none is passed over",
            '        elif name.endswith(".manifest"):',
            "        elif False:",
        ),
        (
            "evidence: the stored cache is believed",
            "        stored = {} if verified or len(files)",
            "        stored = {} if len(files)",
        ),
        (
            "evidence: a cache of any size is read",
            "self._objects.get(CACHE_PATH, _CACHE_BYTES_MAX)",
            "self._objects.get(CACHE_PATH)",
        ),
        (
            "evidence: what a newer build adds to the cache is lost",
            "{**kept.get(key, {}), **_entry(key, known[key])}",
            "_entry(key, known[key])",
        ),
        (
            "evidence: a forged cache is read",
            ' or document["sha256"] != _digest(entries):',
            ":",
        ),
    ),
)

_CLAIMS = (
    *mutations(
        "memwal/jobs/garbage/store.py",
        "tests/jobs/garbage/test_garbage_claims.py",
        (
            "garbage: a writer that was opened anew has an old claim",
            "if not ordered or self._epoch(manifest, ordered[-1]) != manifest.writer_epoch:",
            "if not ordered:",
        ),
        (
            "garbage: a claim is as old as its shard",
            "                high = middle\n            else:\n                low = middle + 1\n"
            "        yield WriterClaim(",
            "                high = middle\n            else:\n                high = middle\n"
            "        yield WriterClaim(",
        ),
    ),
    *mutations(
        "memwal/jobs/garbage/report.py",
        "tests/jobs/garbage/test_garbage_claims.py",
        ("garbage: an old claim is not told", "    claim = run.old_claim\n", "    claim = None\n"),
    ),
)

GARBAGE = (
    *_HEADS,
    *_LIMITS,
    *_CLAIMS,
    *_SHARDS,
    *_WAL,
    *_COVERING,
    *_MODELLED,
    *_ORPHANS,
    *_INGESTS,
    *_DONE,
    *_FOUND,
    *_SIMULATED,
)
