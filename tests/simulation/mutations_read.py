"""Mutations of the merging read, and of what a view is made of."""

from __future__ import annotations

from tests.simulation.mutation_list import Mutation, mutations

_PLAN = "tests/read/test_read_plan.py"
_READ = "tests/read/test_read_shapes.py tests/read/test_read_random.py -m 'not spark'"

READ: tuple[Mutation, ...] = (
    *mutations(
        "memwal/read/plan/sources.py",
        _PLAN,
        (
            "read: oldest generation first",
            "    newest_first = tuple(reversed(shard.pending))",
            "    newest_first = tuple(shard.pending)",
        ),
        (
            "read: a broken shard is left out",
            "    for broken in view.broken:\n        raise broken.error",
            "    for broken in ():\n        raise broken.error",
        ),
        ("read: a hole is passed", "    if not request.holes_allowed:", "    if False:"),
    ),
    *mutations(
        "memwal/read/plan/request.py",
        _PLAN,
        (
            "read: a filter may use row ids",
            "    if found is not None and found[0].lower() not in names:",
            "    if False:",
        ),
        (
            "read: a filter may leave its parentheses",
            "    if not _is_closed(text):",
            "    if False:",
        ),
        ("read: a filter may be empty", "    if not text.strip():", "    if False:"),
        (
            "read: keys of another length",
            "        if len(key) != len(view.primary_key):",
            "        if False:",
        ),
        (
            "read: a negative limit",
            "    if request.limit is not None and request.limit < 0:",
            "    if False:",
        ),
        (
            "read: a comment at the filter's end hides the rest",
            'f"({request.filter}\\n)"',
            'f"({request.filter})"',
        ),
    ),
    *mutations(
        "memwal/format/layout.py",
        "tests/format/test_layout.py",
        (
            "verify: a copy of a manifest is an editor's leaving",
            "(?!.*(?:_gen_|[01]{64}|[0-9a-f]{8}-))",
            "",
        ),
    ),
    *mutations(
        "memwal/jobs/verify/store.py",
        "tests/jobs/verify/test_verify.py -k operating_system",
        (
            "verify: what is below a folder of such a name is left by a system",
            'info.path.rsplit("/", 1)[-1]',
            'info.path.split("/")[1]',
        ),
    ),
    *mutations(
        "memwal/rows/progress.py",
        "tests/rows/test_holes_plan.py",
        (
            "holes: those at the end are passed",
            "    if shard.manifest.current_generation > expected:",
            "    if False:",
        ),
        (
            "holes: those in between are passed",
            "        if generation.generation > expected:",
            "        if False:",
        ),
        (
            "holes: the generation that is being flushed is one",
            "    if shard.manifest.current_generation > expected:\n"
            "        yield _make_hole(shard, expected, shard.manifest.current_generation - 1)",
            "    if shard.manifest.current_generation >= expected:\n"
            "        yield _make_hole(shard, expected, shard.manifest.current_generation)",
        ),
        ("holes: half of one tells its cause", "in (first, last)}", "in (first,)}"),
    ),
    *mutations(
        "memwal/store/tables/view.py",
        "tests/store/test_holes.py",
        (
            "holes: what was merged and dropped during a look is one",
            "            if all(now.get(shard, 0) == merged for shard, merged in holed.items()):",
            "            if True:",
        ),
    ),
    *mutations(
        "memwal/jobs/merge/apply/shard.py",
        "tests/store/test_holes.py -k 'end or drained'",
        (
            "holes: one at the end is passed over once all else is merged",
            "            self.check_same_table(run, view, shard, request)\n        check_next(shard, request)\n",
            "            self.check_same_table(run, view, shard, request)\n",
        ),
    ),
    *mutations(
        "memwal/jobs/merge/plan.py",
        "tests/store/test_holes.py -k 'several'",
        (
            "holes: a shard with one shares commits",
            "total >= small_bytes or any(find_holes(shard)):",
            "total >= small_bytes:",
        ),
    ),
    *mutations(
        "memwal/model.py",
        f"{_PLAN} tests/jobs/merge/test_merge_plan.py",
        (
            "view: merged generations are pending",
            "if g.generation > self.merged_generation",
            "if g.generation >= self.merged_generation",
        ),
    ),
    *mutations(
        "memwal/read/plan/indexes.py",
        _PLAN,
        (
            "read: full coverage leaves a gap",
            "    if not indexes.uncovered(index):\n        return ()\n",
            "",
        ),
        (
            "read: an absent entry is caught up",
            "get(index.name, {}).get(shard.shard_id, 0)\n    return tuple(g for g",
            "get(index.name, {}).get(shard.shard_id, 2**60)\n    return tuple(g for g",
        ),
        ("read: what is caught up is in the gap", "if g.generation > caught_up)", ")"),
    ),
    *mutations(
        "memwal/read/store/winners.py",
        _READ,
        (
            "read: deleted keys of the base show",
            "        return self._hidden.outside(batches, self._keys)",
            "        return iter(batches)",
        ),
        (
            "read: superseded rows of a generation show",
            "                batch = fold.keep_winners(batch, self._winners[id(part)])",
            "                pass",
        ),
    ),
    *mutations(
        "memwal/read/store/newest_rows.py",
        _READ,
        (
            "read: candidates are not judged",
            "        newest = self._drop_superseded([*found, (self._base, candidates)])",
            "        newest = [*found, (self._base, candidates)]",
        ),
    ),
    *mutations(
        "memwal/store/tables/generations.py",
        "tests/read/test_search.py -k nothing_is_kept",
        (
            "search: a generation of the same name is taken for the one before",
            "{self.access} {files} ",
            "{self.access} ",
        ),
    ),
    *mutations(
        "memwal/read/store/search.py",
        "tests/read/test_search_limit.py",
        (
            "search: rows that a flush has deleted count for nothing",
            "return None if _has_deleted(one.dataset) else limit",
            "return limit",
        ),
    ),
    *mutations(
        "memwal/read/store/text_statistics.py",
        "tests/read/test_search_limit.py",
        (
            "search: so many texts as are asked for are all that have a word",
            "        most = max(_SAMPLES, limit or 0)",
            "        most = limit or _SAMPLES",
        ),
        (
            "search: texts that are alike tell how long the others are",
            "            if tells_mean(samples, most):",
            "            if True:",
        ),
    ),
    *mutations(
        "memwal/read/store/search.py",
        "tests/read/test_search.py -k 'lacks_rows or stop_words or ranks or ties'",
        (
            "search: an index that lacks rows is believed",
            "            or index.documents >= _count_texts(dataset, column)\n",
            "            or True\n",
        ),
        (
            "search: an index that cuts texts in another way is used",
            "            same = index.settings == self._index.settings\n",
            "            same = True\n",
        ),
        (
            "search: each table ranks by its own scores",
            "        if statistics is not None:\n            together",
            "        if False:\n            together",
        ),
        (
            "search: what may rank higher is not fetched",
            "_find_least(batches) * self._stretch[place] >= least",
            "False",
        ),
    ),
    *mutations(
        "memwal/read/table.py",
        "tests/read/test_read_shapes.py -m 'not spark'",
        (
            "read: no fresh view when a generation is gone",
            "                if state == before or attempt == _VIEWS_MAX:",
            "                if True:",
        ),
        (
            "read: a reinitialised table is read",
            "            self._check_lineage(view, plan, request)\n",
            "",
        ),
    ),
    *mutations(
        "memwal/store/tables/generations.py",
        "tests/read/test_read_threads.py",
        (
            "read: what other credentials opened is read with",
            "{self.access} {files} ",
            "{files} ",
        ),
    ),
    *mutations(
        "memwal/store/tables/generations.py",
        "tests/read/test_read_shapes.py -k opened_anew",
        (
            "read: a generation in another's place is taken for that one",
            '        if "://" in self.tables.uri:',
            "        if True:",
        ),
    ),
    *mutations(
        "memwal/format/replay.py",
        "tests/format/test_replay_plan.py",
        (
            "replay: an epoch that was never stored",
            "        if entry.writer_epoch > manifest.writer_epoch:",
            "        if False:",
        ),
        (
            "replay: generations in any order",
            "        if not least <= generation <= most:",
            "        if False:",
        ),
        (
            "replay: an entry that can't be read is passed over",
            "        if entry.problem is not None or entry.writer_epoch is None:",
            "        if entry.writer_epoch is None:",
        ),
        (
            "replay: rows that no replay takes are not told",
            "        if flushed and entry.writer_epoch < epoch:",
            "        if False:",
        ),
        (
            "replay: a hole is the tip",
            "    if tip > highest:\n        return None",
            "    if True:\n        return None",
        ),
        (
            "replay: what a writer saw does not count",
            "    highest = max(highest_stored, manifest.wal_entry_position_last_seen)",
            "    highest = highest_stored",
        ),
        (
            "replay: a flushed generation is replayed again",
            "        flushed = is_flushed(manifest, entry.generation)",
            "        flushed = False",
        ),
        (
            "replay: a sentinel counts",
            "        if entry.fence_sentinel:\n            standings",
            "        if False:\n            standings",
        ),
        (
            "replay: covered entries are replayed again",
            "    above = [e for e in ordered if e.position > replayed_to]",
            "    above = list(ordered)",
        ),
    ),
    *mutations(
        "memwal/read/spark.py",
        "tests/read/test_spark_read.py -k event_log",
        (
            "spark: storage options stand in the event log",
            '    if _STORAGE not in (known or ""):',
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/read/plan/sources.py",
        "tests/read/test_spark_requests.py -k wal",
        (
            "spark: rows of the WAL are older than generations",
            "    return (*first, *((shard.shard_id, g) for g in shard.generations))",
            "    return (*((shard.shard_id, g) for g in shard.generations), *first)",
        ),
    ),
    *mutations(
        "memwal/read/spark.py",
        "tests/read/test_spark_requests.py -k vends",
        (
            "spark: tasks follow a name to wherever it leads by then",
            "    return table.model_copy(update=found)",
            "    return table",
        ),
    ),
    *mutations(
        "memwal/read/plan/changes.py",
        "tests/read/test_changes.py -k 'told or expired'",
        (
            "changes: a restore is passed over",
            "        if commit.operation not in _MARKS_ROWS:",
            "        if False:",
        ),
        (
            "changes: expired versions are passed over",
            "    if gone := set(range(first, until + 1)).difference(there):",
            "    if gone := set():",
        ),
    ),
    *mutations(
        "memwal/read/store/changes.py",
        "tests/read/test_changes.py -k 'copy_the_same or came_back'",
        (
            "changes: a key that came back is an insert",
            "        places = gone.take_back(keys)\n",
            "        places = np.full(len(new), -1)\n",
        ),
        (
            "changes: a row that got another key is an update",
            "                same &= pc.equal(new[key], old[key]).to_numpy()",
            "                pass",
        ),
        (
            "changes: deletes are left out",
            "            if commit.takes_rows:",
            "            if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/garbage/apply/__init__.py",
        "tests/read/test_changes.py -k cursor",
        (
            "changes: no version is kept for a cursor",
            "        old -= held\n",
            "",
        ),
        (
            "changes: only the cursor's own version is kept",
            "v >= cursor.version)",
            "v == cursor.version)",
        ),
    ),
    *mutations(
        "memwal/jobs/garbage/plan.py",
        "",
        (
            "simulated: changes: a cursor that moved is not looked at",
            "    moved = (c for c in cursors if c.moved_at_nanos >= since)",
            "    moved = (c for c in cursors if c.moved_at_nanos < since)",
        ),
    ),
    *mutations(
        "memwal/read/store/changes.py",
        "tests/read/test_changes.py -k died",
        (
            "changes: who died before the commit keeps rows that went since",
            "        yield self._tell(DELETE, passed.left(), None)\n",
            "",
        ),
        (
            "changes: a key that came, went and came again is deleted",
            "        passed.take_back(keys)\n",
            "",
        ),
    ),
    *mutations(
        "memwal/store/tables/lance_calls.py",
        "tests/store/test_lance_errors.py",
        (
            "errors: a path is looked at from each of its slashes",
            r",? ?(?<![\w./@+~-])/",
            ",? ?/",
        ),
    ),
    *mutations(
        "memwal/jobs/verify/report.py",
        "tests/read/test_read_wal.py -k unfolds",
        (
            "verify: what was too large to look at is fine",
            "    elif wrong := [check for check in checks if check.refused]:",
            "    elif False:",
        ),
    ),
    *mutations(
        "memwal/jobs/rescue/plan.py",
        "tests/jobs/rescue/test_rescue_plan.py",
        ("rescue: of a WAL that can't be replayed", "    if decided.problems:", "    if False:"),
        ("rescue: of a WAL that takes too much", "    if decided.refused:", "    if False:"),
        (
            "rescue: of a SEALED shard",
            "    if found.manifest.status is ShardStatus.SEALED:",
            "    if False:",
        ),
        (
            "rescue: without any sign of when it was written",
            "    if sign is None or idle is None:",
            "    if idle is None:\n        return None\n    if sign is None:",
        ),
        ("rescue: of a live writer", "    if idle < request.idle_seconds:", "    if False:"),
        (
            "rescue: torn entries are dropped though nobody asks for it",
            "find_torn_end(found) if request.drop_torn else ()",
            "find_torn_end(found)",
        ),
        (
            "rescue: rows are behind a torn entry that is dropped",
            " or not (entry.torn or entry.fence_sentinel):\n            break",
            ":\n            break",
        ),
        (
            "rescue: torn entries are dropped of a live writer",
            "    if not decided.unflushed and not torn:",
            "    if not decided.unflushed:",
        ),
        (
            "rescue: sentinels for torn entries are out of order",
            "    return min(epochs, default=found.manifest.writer_epoch)",
            "    return found.manifest.writer_epoch",
        ),
        (
            "rescue: an old mark is believed",
            "    if now_nanos - mark.made_at_nanos > request.idle_seconds * 1e9:\n        return False\n",
            "",
        ),
        (
            "rescue: a mark is believed though others claimed",
            "found.manifest.writer_epoch - mark.writer_epoch in (0, 1) and all",
            "all",
        ),
        (
            "rescue: a mark is believed though rows came",
            "entry.fence_sentinel and entry.writer_epoch == mark.writer_epoch + 1 for",
            "entry.writer_epoch == mark.writer_epoch + 1 for",
        ),
        (
            "rescue: a mark is believed though another's sentinel came",
            "entry.fence_sentinel and entry.writer_epoch == mark.writer_epoch + 1 for",
            "entry.fence_sentinel for",
        ),
        (
            "rescue: a writer's default bounds are kept",
            "max(_MEMTABLE_ROWS_MIN, _SPARE * max(rows.values(), default=0))",
            "_MEMTABLE_ROWS_MIN",
        ),
    ),
    *mutations(
        "memwal/jobs/rescue/store.py",
        "tests/jobs/rescue/test_rescue.py -k 'mended'",
        (
            "rescue: what is torn no more is dropped",
            "        if len(data) != entry.size_bytes or not is_cut_off(data):",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/rescue/store.py",
        "tests/jobs/rescue/test_rescue.py -k 'while_it_drops'",
        (
            "rescue: the position of a torn entry is free",
            "        self._objects.put(path, sentinel_bytes(sentinel_epoch))",
            "        self._objects.delete([path])",
        ),
    ),
    *mutations(
        "memwal/store/shards/wal.py",
        "tests/jobs/rescue/test_rescue.py -k 'merely_torn'",
        (
            "rescue: what is damaged is dropped",
            "torn=isinstance(error, CutOff),",
            "torn=isinstance(error, Corruption),",
        ),
    ),
    *mutations(
        "memwal/store/shards/wal.py",
        "tests/store/test_wal_entries.py -k cut_off",
        (
            "WAL: damage counts as torn",
            "data[:4] != _CONTINUATION[: len(data)]:",
            "False:",
        ),
    ),
    *mutations(
        "memwal/jobs/rescue/apply.py",
        "tests/jobs/rescue/test_rescue.py -k 'torn_last'",
        (
            "rescue: the bytes of a torn entry are gone",
            "            self.wal.keep_torn(plan.shard_id, entry)\n",
            "",
        ),
    ),
    *mutations(
        "memwal/jobs/rescue/apply.py",
        "tests/jobs/rescue/test_rescue_apply.py",
        (
            "rescue: by this host's clock",
            "        plan = plan_rescue(found, self.request, now)\n",
            "",
        ),
        (
            "rescue: no mark is left",
            "        now = self.wal.mark(shard_id, plan.mark)",
            "        now = self.clock.now_nanos()",
        ),
        ("rescue: the lease is not asked", "        self.before_claim()\n", ""),
        (
            "rescue: a flush that shows nothing is believed",
            "        if left and error is None:",
            "        if False:",
        ),
        (
            "rescue: the mark stays",
            "            error = None\n            self.wal.unmark(plan.shard_id)",
            "            error = None",
        ),
        (
            "rescue: an error after the commit fails it",
            "            error = None\n            self.wal.unmark(plan.shard_id)",
            "            self.wal.unmark(plan.shard_id)",
        ),
        (
            "rescue: the mark is taken away though rows are left",
            "        if not left:\n",
            "        if True:\n",
        ),
        (
            "rescue: a shard that has nothing left is claimed",
            "        if plan.action is not RescueAction.RESCUE or plan.mark is None:",
            "        if plan.mark is None:",
        ),
    ),
    *mutations(
        "memwal/jobs/verify/plan.py",
        "tests/jobs/verify/test_verify_plan.py",
        (
            "verify: progress that fell",
            "            if find_raised(history, after.version, before.mem_wal.merged) is None:",
            "            if False:",
        ),
        (
            "verify: a version that lost the index",
            '            problems.append(f"version {after.version} lost the MemWAL index")\n',
            "",
        ),
        (
            "verify: a restore is damage",
            "        if after.version in rewound or before.mem_wal is None:",
            "        if before.mem_wal is None:",
        ),
        (
            "verify: a hole",
            "for shard in shards for hole in find_holes(shard)]",
            "for shard in () for hole in find_holes(shard)]",
        ),
        (
            "verify: a generation that does not open",
            "        if found.error is not None:",
            "        if False:",
        ),
        (
            "verify: rows that are not there",
            "        elif found.claimed_rows not in (None, found.physical_rows):",
            "        elif False:",
        ),
        (
            "verify: catch-up above the merges",
            "        if generation > merged:",
            "        if False:",
        ),
        (
            "verify: catch-up without coverage",
            "        if missing:\n",
            "        if False:\n",
        ),
        (
            "verify: a gap in the WAL",
            "            if position != expected:",
            "            if False:",
        ),
        (
            "verify: WAL entries that can't be read",
            "        problems += wal.broken or list_replay_problems(shard.manifest, wal)",
            "        problems += list_replay_problems(shard.manifest, wal)",
        ),
        (
            "verify: a missing sentinel",
            "        if s.manifest.writer_epoch >= 2\n",
            "        if False\n",
        ),
        (
            "verify: manifests that can't be read",
            "    problems = [str(broken.error) for broken in view.broken]",
            "    problems: list[str] = []",
        ),
        (
            "verify: strangers beside shards",
            '    problems = [f"{layout.MEM_WAL}/{name}" for name in sorted(outside)]',
            "    problems: list[str] = []",
        ),
        (
            "verify: strangers in shards",
            '            problems.append(f"{layout.shard_folder(shard)}/{name}")\n',
            "            pass\n",
        ),
    ),
    *mutations(
        "memwal/jobs/status/plan.py",
        "tests/jobs/status/test_due.py",
        (
            "due: a SEALED shard",
            "    if not pending or shard.manifest.status is ShardStatus.SEALED:",
            "    if not pending:",
        ),
        ("due: a table without a key", "    if not view.primary_key:", "    if False:"),
        (
            "due: an age starves",
            "        if age >= limits.due_age_seconds_min:",
            "        if False:",
        ),
        ("due: bytes starve", "    if size >= limits.due_bytes_min:", "    if False:"),
    ),
    *mutations(
        "memwal/model.py",
        "tests/jobs/wait/test_wait_plan.py",
        (
            "wait: an absent entry is caught up",
            "self.index_catchup.get(name, {}).get(shard, 0) for",
            "self.index_catchup.get(name, {}).get(shard, 2**60) for",
        ),
    ),
    *mutations(
        "memwal/jobs/wait/plan.py",
        "tests/jobs/wait/test_wait_plan.py",
        (
            "wait: collected before it is merged",
            "    return min(merged, min(left, default=merged + 1) - 1)",
            "    return min(left, default=2**60) - 1",
        ),
        (
            "wait: a shard that can't be read is not waited for",
            "            raise broken[shard]",
            "            continue",
        ),
    ),
)
