"""Mutations of the garbage job: what it plans, what it goes by, what it does."""

from __future__ import annotations

from tests.simulation.mutation_list import Change, Mutation, mutations

PLAN = "tests/jobs/garbage/test_garbage_plan.py"
APPLY = "tests/jobs/garbage/test_garbage_apply.py"
_JOB = "memwal/jobs/garbage"
_PLAN = f"{_JOB}/plan.py"
_MODEL = f"{_JOB}/model.py"
_LOOK = f"{_JOB}/look.py"
_GENERATION = f"{_JOB}/kinds/generation.py"
_WAL_ENTRY = f"{_JOB}/kinds/wal_entry.py"

_HEADS = mutations(
    f"{_JOB}/store/wal_heads.py",
    "tests/jobs/garbage/test_wal_heads.py",
    (
        "garbage: heads that are remembered are of no file with an etag",
        "modified_at_nanos=modified, etag=etag)",
        "modified_at_nanos=modified)",
    ),
    (
        "garbage: what others remembered of WAL entries lets them go",
        "            if entry.told or (entry.read and not self._is_confirmed(entry))",
        "            if False",
    ),
)

_CONFIGURED = mutations(
    f"{_JOB}/request.py",
    "tests/jobs/maintain/test_maintain.py -k configured",
    (
        "garbage: a configured retention is enough to delete, whoever asks",
        "execute=self.execute or self.as_configured",
        "execute=True",
    ),
    (
        "garbage: what is asked for as configured is deleted of every table",
        "        if configured_seconds is None:\n            return self\n",
        "        if configured_seconds is None:\n            return replace(self, execute=True)\n",
    ),
    (
        "garbage: with a configured retention WAL goes that is to stay",
        "wal=expiring if self.wal is None else self.wal",
        "wal=expiring",
    ),
)

_SWEEPS = (
    *_CONFIGURED,
    *mutations(
        f"{_JOB}/store/versions.py",
        "tests/jobs/garbage/test_wal_heads.py -k etags",
        (
            "garbage: versions that are remembered are of no file with an etag",
            '        etag=str(entry["etag"]),\n',
            "",
        ),
    ),
    *mutations(
        _PLAN,
        "tests/jobs/garbage/test_garbage_sweep.py",
        (
            "sweep: one that is old is enough",
            "    return not sweep.swept_at_nanos <= now_nanos < ends_nanos",
            "    return now_nanos < sweep.swept_at_nanos",
        ),
        (
            "sweep: one of a time to come is enough",
            "    return not sweep.swept_at_nanos <= now_nanos < ends_nanos",
            "    return now_nanos >= ends_nanos",
        ),
        (
            "sweep: of a later version",
            "        sweep.version <= look.version\n        and ",
            "        ",
        ),
        ("sweep: of another table's version", "        and all(same)\n", ""),
        ("sweep: WAL entries were not looked at", "        and sweep.wal >= look.limits.wal\n", ""),
        (
            "sweep: progress may fall",
            "        and all(merged.get(s, 0) >= was.merged_generation "
            "for s, was in sweep.shards.items())\n",
            "",
        ),
        (
            "sweep: what waits for the grace is forgotten",
            "        if 0 < was.waits_since_nanos <= look.cutoff_nanos\n        or gates",
            "        if gates",
        ),
        (
            "sweep: a shard that is let go by a version is overlooked",
            "        or gates.held(shard_id, was.next_generation) is None\n",
            "",
        ),
        (
            "sweep: a shard that can't be read is forgotten",
            "    shards |= {ShardId(b.shard_id): SweptShard(waits_since_nanos=1) for b in plan.broken}\n",
            "",
        ),
        (
            "sweep: what failed waits for the grace",
            "    since |= {i.shard_id: 1 for i in going if i.path not in done}\n",
            "",
        ),
        (
            "sweep: a hint is mended by what was seen before the lease",
            " if i.action is not Action.KEEP or i.is_mend]",
            " if i.action is not Action.KEEP]",
        ),
    ),
    *mutations(
        f"{_JOB}/apply/deletions.py",
        "tests/jobs/garbage/test_garbage_sweep.py",
        (
            "sweep: what was seen before the lease is written",
            "(replace(i, replacement=None) for i in others",
            "(i for i in others",
        ),
    ),
    *mutations(
        f"{_JOB}/apply/__init__.py",
        "tests/jobs/garbage/test_garbage_sweep.py",
        (
            "sweep: shards that were never merged are not looked at before versions are expired",
            " | {s for s in shards if not merged.get(s, 0)}",
            "",
        ),
        (
            "sweep: generations are planned by older versions than will be left",
            "        shown = look if self.acts else look.without_versions(old)",
            "        shown = look",
        ),
    ),
    *mutations(
        f"{_JOB}/store/__init__.py",
        "tests/jobs/garbage/test_garbage_sweep.py",
        (
            "sweep: an edited document is taken",
            ' and document["sha256"] == _digest(body)',
            "",
        ),
        (
            "sweep: a newer build's document is taken",
            'known = document["format"] == _FORMAT and ',
            "known = ",
        ),
        ("sweep: a newer build's document is overwritten", "if not self._newer and ", "if "),
        (
            "sweep: one that can't be read ends all tables' run",
            "        except MemWalError:\n            self._newer",
            "        except MemWalError:\n            raise\n            self._newer",
        ),
        (
            "sweep: one that can't be read is overwritten",
            "            self._newer = True  # it may be\n",
            "",
        ),
        (
            "sweep: any name is a shard",
            "    if not layout.is_shard_folder(name):",
            "    if False:",
        ),
    ),
)

_LIMITS = mutations(
    _PLAN,
    f"{PLAN} -k 'short_times or expirable or without_any_progress'",
    (
        "garbage: a short retention is not refused",
        "retention is not None and retention < RETENTION_SECONDS_MIN:",
        "False:",
    ),
    (
        "garbage: a short grace is not refused",
        "request.grace_seconds < GRACE_SECONDS_MIN:",
        "False:",
    ),
    (
        "garbage: versions of branches count as expirable",
        "        if v.on_main\n        and v.version != look.version",
        "        if v.version != look.version",
    ),
    (
        "garbage: the latest version counts as expirable",
        "        and v.version != look.version\n",
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


def _off(name: str, condition: str) -> tuple[str, str, str]:
    """A gate that holds nothing any more."""
    return (name, f"if {condition}:", "if False:")


_GATES = mutations(
    _LOOK,
    PLAN,
    (
        "garbage: a shard that was not listed is planned all the same",
        "ShardEvidence(shard_id=shard.shard_id, problem=problem)",
        "ShardEvidence(shard_id=shard.shard_id)",
    ),
    _off("garbage: a SEALED shard is touched", "self.manifest.status is not ShardStatus.ACTIVE"),
    _off("garbage: a shard that can't be read is touched", "self.found.problem is not None"),
    _off("garbage: versions that can't be read hold nothing", "self._unreadable is not None"),
    (
        "garbage: a shard that no retained version knows goes",
        '            return "no retained version shows that it was merged"',
        "            return None",
    ),
    (
        "garbage: retained versions don't hold",
        "        name, merged = lowest\n        if generation > merged:",
        "        name, merged = lowest\n        if False:",
    ),
    _off("garbage: indexes don't hold", "reached < generation"),
    (
        "garbage: an index that is not recorded does not hold",
        "            if reached is None:\n                return",
        "            if reached is None:\n                continue\n                return",
    ),
    (
        "garbage: any old manifest will do for the one from before the grace",
        "past if past is not None and past.version == wanted else None",
        "past",
    ),
    _off("garbage: a version that can't be read is passed over", "found.problem is not None"),
    (
        "garbage: trouble in finding versions is passed over",
        "for problem in self.evidence.problems:",
        "for problem in ():",
    ),
    _off(
        "garbage: the latest version need not be among those found",
        "not any(v.on_main and v.version == self.version for v in self.evidence.versions)",
    ),
)

_GENERATIONS = mutations(
    _GENERATION,
    PLAN,
    (
        "garbage: folders of a shard without a manifest go",
        'held="the shard has no manifest"\n                if error is None',
        "held=None\n                if error is None",
    ),
    (
        "garbage: listed generations are dropped whatever holds them",
        "why = shard.shut or shard.gates.held(shard.shard_id, generation.generation)",
        "why = shard.shut",
    ),
    _off("garbage: folders are deleted whatever holds their number", "held is not None"),
    ("garbage: listed folders are deleted", "if folder.name not in listed:", "if True:"),
    _off("garbage: generation 0 is a number as any other", "number < 1"),
    _off("garbage: a flush in progress may go", "number >= current"),
    (
        "garbage: without a manifest from before the grace folders go",
        '        return UntilGrace("no manifest is older than the grace")',
        "        return None",
    ),
    _off(
        "garbage: the past manifest is not asked whether it named the folder",
        "folder.name in listed_before",
    ),
    _off("garbage: a number flushed within the grace may go", "number >= past.current_generation"),
    _off(
        "garbage: a folder with a young file goes", "newest_of(folder.files) > shard.cutoff_nanos"
    ),
    (
        "garbage: the table's part of a folder goes last",
        "for stage in (first, rest) if stage)",
        "for stage in (rest, first) if stage)",
    ),
    (
        "delete: a generation's path need not have its number",
        "return layout.parse_generation_folder(name) == item.generation is not None",
        "return True",
    ),
)

_COVERED = (
    _off("wal: entries above the replay position go", "entry.position > replay"),
    _off(
        "wal: entries above the last position seen go",
        "entry.position > manifest.wal_entry_position_last_seen",
    ),
    _off("wal: entries that were covered within the grace go", "entry.position > _wal_floor(past)"),
    _off(
        "wal: entries of generations to come go", "entry.generation >= manifest.current_generation"
    ),
    (
        "wal: retained versions don't hold entries",
        "    return shard.gates.version_holds(shard.shard_id, entry.generation)",
        "    return None",
    ),
)
_HIGHEST = _off("wal: the highest position goes", "entry.position == highest")
_HIGHEST_READ = (
    "wal: the highest position is worth reading",
    "(p for p in positions if p <= last and p != highest)",
    "(p for p in positions if p <= last)",
)
_SENTINELS = _off("wal: sentinels go", "entry.fence_sentinel")
_CLAIMED = (
    "wal: an unfinished claim holds nothing",
    "            or _hold_led(entry, claims)\n",
    "",
)
_NO_GENERATION = (
    "wal: entries without a generation go",
    '        return "does not say which generation covers it"',
    "        return None",
)

_WAL = (
    *mutations(
        _WAL_ENTRY,
        f"{PLAN} -k 'wal or claim or stalled or entries or unknown or small'",
        (
            "wal: entries go unasked",
            "in look.shards if look.limits.wal else ():",
            "in look.shards:",
        ),
        (
            "wal: entries are told though a sentinel was not found",
            "    if not all(e in located for e in range(2, epoch + 1)):",
            "    if False:",
        ),
        (
            "wal: sentinels of newer epochs are taken from what is remembered",
            "*(e for e in earlier if e < begins)",
            "*earlier",
        ),
        (
            "wal: what is above an older sentinel is told as its epoch's",
            "        present = max(present, known.get(entry.position, 1))",
            "        present = known.get(entry.position, present)",
        ),
        (
            "wal: what is as small as a sentinel is told",
            "        if entry.position >= lowest and unread and not _is_small(entry):",
            "        if entry.position >= lowest and unread:",
        ),
        (
            "wal: a file of any size is remembered as a sentinel",
            "    return tuple(e.writer_epoch or 0 for e in below if _is_small(e))",
            "    return tuple(e.writer_epoch or 0 for e in below)",
        ),
        (
            "wal: told entries go whatever covers them",
            "    if cover is None or not is_covered(shard.found, entry):",
            "    if cover is None:",
        ),
        (
            "wal: told entries go before what covered them",
            "    if min(numbers, default=layout.U64_MAX) < cover.current_generation:",
            "    if False:",
        ),
        (
            "wal: told entries go whatever version needs them",
            "    return shard.gates.version_holds(shard.shard_id, cover.current_generation - 1)",
            "    return None",
        ),
        (
            "wal: entries of a closed shard go",
            "held=shard.shut\n            or _hold",
            "held=_hold",
        ),
        *_COVERED,
        _HIGHEST,
        (
            "wal: entries go without a manifest from before the grace",
            '        return UntilGrace("no manifest is older than the grace")',
            "        return None",
        ),
        _off("wal: young entries go", "entry.file.modified_at_nanos > shard.cutoff_nanos"),
        _off("wal: entries that can't be read go", "entry.problem is not None"),
        _off("wal: entries that were not looked at go", "not entry.read"),
        _SENTINELS,
        _NO_GENERATION,
        _off("wal: entries go before their generation", "entry.generation in numbers"),
        (
            "wal: what lies below an entry that can't be read goes",
            "            or _hold_below_unknown(entry, unknown)",
            "",
        ),
        _CLAIMED,
    ),
    *mutations(
        _WAL_ENTRY,
        PLAN,
        _HIGHEST_READ,
        (
            "wal: oldest first, so that sentinels fill a run",
            "highest), reverse=True))",
            "highest)))",
        ),
        (
            "wal: what was seen last is no bound",
            "    return min(manifest.replay_after_wal_entry_position, "
            "manifest.wal_entry_position_last_seen)",
            "    return manifest.replay_after_wal_entry_position",
        ),
        (
            "wal: entries that were not read prove a claim finished",
            "    known = [w for w in wal if w.is_known]",
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
            "delete: a WAL entry's path need not be one",
            "return layout.parse_wal_entry_name(name) is not None and item.kind",
            "return item.kind",
        ),
    ),
)


def _together(name: str, *found: tuple[str, str, str]) -> Mutation:
    """Gates of WAL entries that stand behind one another."""
    changes = (Change(file=_WAL_ENTRY, before=before, after=after) for _, before, after in found)
    return Mutation(name=name, changes=tuple(changes))


# The same gates once more, as a run meets them.
_SIMULATED = (
    *mutations(
        _LOOK,
        "",
        (
            "simulated: retained versions don't hold a generation",
            "        name, merged = lowest\n        if generation > merged:",
            "        name, merged = lowest\n        if False:",
        ),
        (
            "simulated: neither do the latest version and the others",
            "        held = held or self.version_holds(shard_id, generation)\n",
            "",
        ),
        _off("simulated: indexes don't hold a generation", "reached < generation"),
        (
            "simulated: an index that is not recorded does not hold",
            "            if reached is None:\n                return",
            "            if reached is None:\n                continue\n                return",
        ),
    ),
    *mutations(
        _GENERATION,
        "",
        _off("simulated: the past manifest is not asked", "folder.name in listed_before"),
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
    *mutations(
        f"{_JOB}/kinds/orphan.py",
        "",
        (
            "simulated: shards are adopted while a version has the index",
            "    if holding is None:",
            "    if True:",
        ),
        (
            "simulated: an adopted shard's manifests go first",
            "return [first, second, wal, last]",
            "return [last, first, second, wal]",
        ),
    ),
    _together("simulated: an unfinished claim holds no WAL", _CLAIMED),
    # A sentinel names no generation, so that the gate for that stands behind it.
    _together("simulated: sentinels go", _SENTINELS, _NO_GENERATION),
    # Three gates and the choice of what is read keep what is not covered: all of them.
    _together(
        "simulated: WAL entries go that no generation covers",
        *_COVERED,
        ("", "last = min(_wal_floor(latest), _wal_floor(past))", "last = max(positions)"),
    ),
    _together(
        "simulated: the highest WAL position goes",
        _HIGHEST,
        _HIGHEST_READ,
        _SENTINELS,
        _NO_GENERATION,
    ),
)

_MODELLED = (
    *mutations(
        _MODEL,
        PLAN,
        (
            "garbage: a young manifest is passed over on the way to the past one",
            "            break\n        found = stored.version",
            "            continue\n        found = stored.version",
        ),
        ("garbage: an empty folder is old", "default=layout.U64_MAX)", "default=0)"),
    ),
    *mutations(
        "memwal/indexes.py",
        PLAN,
        ("garbage: maintained indexes only, though none is named", " or not named\n", "\n"),
    ),
)

_ORPHANS = (
    *mutations(
        f"{_JOB}/kinds/leftover.py",
        PLAN,
        (
            "garbage: what was staged a moment ago goes",
            "young = file.modified_at_nanos > cutoff",
            "young = False",
        ),
    ),
    *mutations(
        f"{_JOB}/kinds/snapshot.py",
        PLAN,
        _off(
            "garbage: lost snapshots go though versions can't be read",
            "look.unreadable is not None",
        ),
        _off(
            "garbage: a snapshot goes that a version names",
            "found.index_uuid in version.index_uuids",
        ),
        (
            "garbage: young snapshots go",
            "if found.file.modified_at_nanos > look.cutoff_nanos else None",
            "if False else None",
        ),
    ),
    *mutations(
        f"{_JOB}/kinds/orphan.py",
        PLAN,
        _off("adoption: unasked", "not look.limits.adopt_orphans"),
        (
            "adoption: though versions can't be read",
            "shut = find_refusal(look) or look.unreadable",
            "shut = find_refusal(look)",
        ),
        (
            "adoption: while a version has the index",
            "    if holding is None:",
            "    if True:",
        ),
        _off("adoption: of a shard that can't be read", "found.problem is not None"),
        _off("adoption: of a shard with nothing known in it", "not found.files"),
        _off("adoption: while a writer may be at work", "newest_of(found.files) > cutoff_nanos"),
        (
            "adoption: manifests go first",
            "return [first, second, wal, last]",
            "return [last, first, second, wal]",
        ),
    ),
)

_INGESTS = mutations(
    f"{_JOB}/kinds/ingest.py",
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
        "    given_up = newest <=",
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
        '"finished, but younger than the grace" if newest > look.cutoff_nanos else None,',
        "None,",
    ),
    (
        "staged: another run's rows go within the grace",
        '"younger than the grace" if newest_of(rows.files) > look.cutoff_nanos else None,',
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
        f"{_JOB}/apply/deletions.py",
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
    ),
    *mutations(
        f"{_JOB}/apply/deletions.py",
        APPLY,
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
        f"{_JOB}/apply/deletions.py",
        PLAN,
        (
            "delete: an item's objects are not checked",
            '    if file.path != path and not file.path.startswith(f"{path}/"):',
            "    if False:",
        ),
        (
            "delete: items are not checked",
            "    for item in deletes:\n        check_item(item)",
            "    for item in deletes:\n        pass",
        ),
    ),
    *mutations(
        f"{_JOB}/apply/deletions.py",
        "",
        (
            "simulated: the writer's epoch is bumped by a drop",
            "        committed = self.manifests.commit(current, proposed)",
            "        committed = self.manifests.commit(\n            current, "
            "replace(proposed, writer_epoch=proposed.writer_epoch + 1)\n        )",
        ),
    ),
)

_APPLY = f"{_JOB}/apply/__init__.py"
_RUN = "tests/jobs/garbage/test_garbage.py tests/faults/test_garbage_faults.py -m 'not spark' -k"
_ORDER = (
    *mutations(
        _APPLY,
        f"{_RUN} 'exit_codes or lease or never_merged or expired_first or within_the_grace'",
        (
            "garbage: what was planned before the lease is done",
            "                self.seen = self._look_again(self.seen, verified=True)\n"
            "                self._intend",
            "                self._intend",
        ),
        ("garbage: no lease is taken", "                self.take_lease()\n", ""),
        (
            "garbage: versions are expired while a shard was never merged",
            "        old = frozenset[int]() if never_merged else find",
            "        old = find",
        ),
        (
            "garbage: versions are expired without the lease",
            '            self.before_commit()\n            self.steps("before_expire")',
            '            self.steps("before_expire")',
        ),
    ),
    *mutations(
        _APPLY,
        "tests/faults/test_garbage_faults.py -k broken_invariant",
        (
            "garbage: a drop that would break an invariant ends all tables",
            "            self.broken = broken\n        except",
            "            raise\n        except",
        ),
        (
            "garbage: a delete that would break an invariant ends all tables",
            "            self.broken = broken\n            return ()",
            "            raise",
        ),
    ),
    *mutations(
        _APPLY,
        "tests/faults/test_forged_paths.py -k expired",
        (
            "foreign: a dry run promises to expire through a link",
            "            self.expiry.check_expirable()\n",
            "",
        ),
    ),
    *mutations(
        f"{_JOB}/store/__init__.py",
        "tests/faults/test_forged_paths.py -k expired",
        ("foreign: versions are expired through a link", "        self.check_expirable()\n", ""),
    ),
    *mutations(
        _APPLY,
        "tests/jobs/garbage/test_garbage_order.py",
        (
            "garbage: versions are expired by what was seen before the lease",
            "                    self.seen = self._look_again(self.seen, verified=False)\n"
            "                    self._ex",
            "                    self._ex",
        ),
        (
            "garbage: an idle run takes the lease",
            "            if self.seen.has_work:",
            "            if True:",
        ),
    ),
    Mutation(
        name="garbage: this host's clock is read before the store's",
        tests="tests/jobs/garbage/test_garbage_order.py",
        changes=(
            Change(
                file=_APPLY,
                before="        store_now = self.evidence",
                after="        now = self.clock.now_nanos()\n        store_now = self.evidence",
            ),
            Change(
                file=_APPLY,
                before="        ahead = self.clock.now_nanos() - store_now",
                after="        ahead = now - store_now",
            ),
        ),
    ),
    *mutations(
        _APPLY,
        "tests/jobs/garbage/test_wal_heads.py -k forged",
        (
            "garbage: what another process remembered is acted on",
            "                self.seen = self._look_again(self.seen, verified=True)\n"
            "                self._intend",
            "                self.seen = self._look_again(self.seen, verified=False)\n"
            "                self._intend",
        ),
    ),
    *mutations(
        _APPLY,
        "tests/jobs/garbage/test_garbage.py -k 'emptied_in_passes and local'",
        (
            "garbage: WAL entries wait for the next run",
            "        with suppress(MemWalError):\n"
            "            self.seen = self._look_again(before, verified=True, only=shards)\n",
            "",
        ),
    ),
    *mutations(
        _APPLY,
        "",
        (
            "simulated: a fast clock is believed",
            "self.ahead_nanos = ahead if ahead > _CLOCKS_AGREE_NANOS else 0",
            "self.ahead_nanos = 0",
        ),
    ),
)

_EVIDENCE = "tests/jobs/garbage/test_garbage.py -k"
_FOUND = (
    *mutations(
        f"{_JOB}/kinds/snapshot.py",
        f"{_EVIDENCE} 'strangers or snapshot_that_lost or wal_entries_wait'",
        (
            "evidence: any lone index file is a snapshot",
            "        return all(mark in tail for mark in _MARKS)",
            "        return True",
        ),
        (
            "evidence: an index folder need not be named by a UUID",
            "if len(files) == 1 and _is_uuid(name) and",
            "if len(files) == 1 and",
        ),
        (
            "evidence: a folder with more than a snapshot in it is one",
            "if len(files) == 1 and _is_uuid(name) and",
            "if _is_uuid(name) and",
        ),
    ),
    *mutations(
        f"{_JOB}/store/versions.py",
        f"{_EVIDENCE} 'branch or detached or unreadable or cache or made_again'",
        (
            "evidence: branches are not looked at",
            "        for info in self._objects.list(layout.BRANCHES):",
            "        for info in ():",
        ),
        (
            "evidence: branches that can't be found are passed over",
            "        problems += self._find_missing_branches(files)",
            "        problems += ()",
        ),
        (
            "evidence: generations of a branch are branches",
            'if found and "/" not in name and not _is_generation(branch):',
            'if found and "/" not in name:',
        ),
        (
            "evidence: a version that is torn is passed over",
            "            return replace(bare, problem=str(error))",
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
            "{**kept.get(info, {}), **_entry_of(info, known[info])}",
            "_entry_of(info, known[info])",
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
        f"{_JOB}/store/shards.py",
        "tests/jobs/garbage/test_garbage_claims.py",
        (
            "garbage: a writer that was opened anew has an old claim",
            "if ordered and is_of_claim(ordered[-1]):",
            "if ordered:",
        ),
        (
            "garbage: a claim is as old as its shard",
            "ordered[bisect_left(ordered, True, key=is_of_claim)]",
            "ordered[0]",
        ),
    ),
    *mutations(
        f"{_JOB}/report.py",
        "tests/jobs/garbage/test_garbage_claims.py",
        (
            "garbage: an old claim is not told",
            "    claim = garbage.old_claim\n",
            "    claim = None\n",
        ),
    ),
)

_NUMBERED_TESTS = "tests/jobs/garbage/test_garbage_numbered.py"
_NUMBERED = (
    *mutations(
        f"{_JOB}/kinds/shard_manifest.py",
        _NUMBERED_TESTS,
        (
            "shard manifests: the present writer's last one goes",
            """        reasons.append((own, "the last of the present epoch's writer, or newer"))\n""",
            "",
        ),
        (
            "shard manifests: the hint's target goes",
            """        reasons.append((found.history.hinted, "the version hint's target, or newer"))\n""",
            "",
        ),
        (
            "shard manifests: a hint that can't be read is none",
            """        if found.history.hinted is None:
            return 0, "the version hint can't be read: a writer may start anywhere"
        reasons.append((""",
            """        if found.history.hinted is not None:
            reasons.append((""",
        ),
        (
            "shard manifests: what readers hold goes",
            """    reasons.append((shard.past.version, "the latest when the grace began, or newer"))\n""",
            "",
        ),
        ("shard manifests: version 1 goes", "return {1, *(version for", "return {*(version for"),
        (
            "shard manifests: after an epoch's last one, drops go",
            "range(own + 1, first + 1)",
            "range(own + 1, own + 2)",
        ),
        (
            "shard manifests: no name stays taken",
            "range(own + 1, first + 1)",
            "range(0)",
        ),
        (
            "shard manifests: what the next run needs to know an epoch's end goes",
            "            if end.last_own < floor <= (end.next_first or 0):",
            "            if False:",
        ),
        (
            "shard manifests: a hint that leads nowhere stays",
            "        if shard.found.astray and shard.shut is None:",
            "        if False:",
        ),
        (
            "shard manifests: those below a gap go",
            "        if held is None and stopped_upto < stored.version < lowest:",
            "        if False:",
        ),
        (
            "shard manifests: a run has no limit",
            "    if most < len(versions):",
            "    if False:",
        ),
        (
            "shard manifests: what a killed run left below a stopper goes",
            " or stored.version < stopped_upto)",
            ")",
        ),
        (
            "shard manifests: they go without having been read",
            "    if has_collectable(found, latest, min(reasons)[0]):",
            "    if False:",
        ),
    ),
    *mutations(
        f"{_JOB}/apply/deletions.py",
        _NUMBERED_TESTS,
        (
            "numbered: highest first",
            "enumerate(going):",
            "enumerate(going[::-1]):",
        ),
        (
            "numbered: names are stopped lowest first",
            "for item in reversed(items) if",
            "for item in items if",
        ),
        (
            "numbered: names are not stopped",
            "                self.objects.put(path, replacement)",
            "                pass",
        ),
        (
            "numbered: a lost lease is not noticed",
            "_CHECKED_EVERY == 0:\n            self.before_commit()",
            "_CHECKED_EVERY == 0:\n            pass",
        ),
    ),
    *mutations(
        f"{_JOB}/kinds/lease_claim.py",
        _NUMBERED_TESTS,
        (
            "lease claims: the lease goes",
            "claims[: -max(1, limits.numbered_kept_min)]",
            "claims",
        ),
        (
            "lease claims: young ones go",
            "    young = next(ages, len(candidates))",
            "    young = len(candidates)",
        ),
    ),
    *mutations(
        "memwal/store/records/lease.py",
        _NUMBERED_TESTS,
        (
            "lease: nobody asks for the claim before",
            "        return token > 1 and self._objects.exists(",
            "        return token > 0 or self._objects.exists(",
        ),
        (
            "lease: a number that was collected is won again",
            "        if newer is not None and newer.token > claim.token:",
            "        if False:",
        ),
        (
            "lease: a claim that was brought back is taken for the one that was seen",
            "self.read(current.token) == current",
            "self.read(current.token) is not None",
        ),
        (
            "lease: a renewal that stalled before its put stands",
            """        try:
            self.check(claim.token)
        except LeaseHeld:
            self._withdraw(claim.token)
            raise
""",
            "",
        ),
        (
            "lease: a release that stalled before its put stands",
            "            if self._find_newer(claim.token) is not None:",
            "            if False:",
        ),
        (
            "lease: who was overtaken makes a hole",
            "        if not self._objects.exists(layout.lease_claim_path(token + 1)):",
            "        if True:",
        ),
    ),
    *mutations(
        "memwal/store/shards/manifests.py",
        _NUMBERED_TESTS,
        (
            "shard manifests: a stopper ends the way up",
            """                if layout.decode_stopper(found) is not None:
                    break
""",
            "",
        ),
        (
            "shard manifests: a commit that came late stays",
            "            if current is None or self._is_stored(shard_id, current.version):",
            "            if True:",
        ),
        (
            "shard manifests: a commit is late wherever there are newer ones",
            "any(v > version and (mine is None or at < mine)",
            "any(v > version",
        ),
        (
            "shard manifests: what was collected since is taken back",
            "        if not self._is_stored(shard_id, version):",
            "        if False:",
        ),
        (
            "shard manifests: what could not be taken back is a lost race",
            "        for _, why in self._objects.delete([path]).failed:",
            "        for _, why in self._objects.delete([path]).failed[:0]:",
        ),
        (
            "shard manifests: a listing that lags shows a fork",
            "        if self._bytes(shard_id, lowest - 1) is not None:",
            "        if False:",
        ),
        (
            "shard manifests: what is deleted while it is listed is a fork",
            "            if self._is_stored(shard_id, version):\n                path",
            "            if True:\n                path",
        ),
    ),
    *mutations(
        f"{_JOB}/store/shards.py",
        _NUMBERED_TESTS,
        (
            "garbage: a version that leads nowhere is not noticed",
            "                self._manifests.check_unforked(shard_id, sizes)",
            "                pass",
        ),
    ),
    *mutations(
        "memwal/jobs/verify/checks.py",
        "tests/jobs/verify/test_verify.py -k leads_nowhere",
        (
            "verify: a version that leads nowhere is not noticed",
            "        self.facts.check_unforked(self.view)",
            "        pass",
        ),
    ),
    *mutations(
        f"{_JOB}/kinds/shard_manifest.py",
        "",
        (
            "simulated: after an epoch's last manifest no name stays taken",
            "    return {1, *(version for versions in between for version in versions)}",
            "    return {1}",
        ),
    ),
)

_UNITS = mutations(
    f"{_JOB}/unit.py",
    "tests/faults/test_garbage_faults.py -k lost_its_lease",
    (
        "garbage: units don't know the lease",
        "                        lease_token=table.lease_token,\n",
        "",
    ),
    (
        "garbage: units don't ask for the lease",
        "                stores.leases.check(unit.lease_token)",
        "                pass",
    ),
)

GARBAGE = (
    *_HEADS,
    *_SWEEPS,
    *_LIMITS,
    *_CLAIMS,
    *_NUMBERED,
    *_GATES,
    *_GENERATIONS,
    *_ORDER,
    *_WAL,
    *_MODELLED,
    *_ORPHANS,
    *_INGESTS,
    *_DONE,
    *_UNITS,
    *_FOUND,
    *_SIMULATED,
)
