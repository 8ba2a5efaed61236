"""Mutations of an ingest's guards, and of what tells of a key in two shards."""

from __future__ import annotations

from tests.simulation.mutation_list import Mutation, mutations

_SPARK_WRITER = "tests/ingest/test_spark_writer.py -m 'not spark' -k"
_ONE_SHARD = "tests/ingest/test_one_key_one_shard.py -k"

INGEST: tuple[Mutation, ...] = (
    *mutations(
        "memwal/ingest/routing.py",
        "tests/ingest/test_routing.py -m 'not integration'",
        (
            "ingest: LanceDB's shard ids are not taken",
            "    if spec is None or len(spec.fields) != 1:\n        return values.own_id",
            "    if True:\n        return values.own_id",
        ),
        ("ingest: of several shard specs one is taken", "    if len(specs) > 1:", "    if False:"),
        (
            "ingest: a value whose rows wait in another shard is written",
            "        if others:",
            "        if False:",
        ),
        (
            "ingest: where a value's rows wait is not asked",
            "        waiting = [s for s in holding if s in self.waiting]",
            "        waiting: list[ShardId] = []",
        ),
        (
            "ingest: one that was stopped need not go on where it wrote",
            "        going_on = [s for s in holding if s in self.written]",
            "        going_on: list[ShardId] = []",
        ),
        (
            "ingest: a shard that says it holds another value is taken by its id",
            "                if said.entries:",
            "                if False:",
        ),
        (
            "ingest: only a shard that is there already contests another's values",
            "            by_derived.setdefault(derived, set()).add(place.shard_id)",
            "            del derived",
        ),
    ),
    *mutations(
        "memwal/ingest/target.py",
        f"{_ONE_SHARD} 'older_id or lancedb_s or opened_for_nothing or are_staged'",
        (
            "ingest: of a value in two shards, rows in the WAL only don't wait",
            "    waits = side_by_side(lambda shard: _waits(wal, shard), asked, _READERS_MAX)",
            "    waits = [bool(shard.pending) for shard in asked]",
        ),
    ),
    *mutations(
        "memwal/store/shards/wal.py",
        f"{_ONE_SHARD} 'older_id or lancedb_s or opened_for_nothing or are_staged'",
        (
            "ingest: of a value in two shards, one that was opened for nothing has rows",
            "            if not head.fence_sentinel and not is_flushed(manifest, head.generation):",
            "            if not is_flushed(manifest, head.generation):",
        ),
    ),
    *mutations(
        "memwal/ingest/routing.py",
        f"{_ONE_SHARD} one_shard_can_not_be_read",
        (
            "ingest: of a value's two shards, one that can't be read holds nothing",
            "        if unreadable and self.key:",
            "        if False:",
        ),
        (
            "ingest: a shard under an older id that can't be read holds nothing",
            "{derived, values.own_id}.intersection(self.broken)",
            "{derived}.intersection(self.broken)",
        ),
    ),
    *mutations(
        "memwal/ingest/routing.py",
        "tests/ingest/test_routing.py -k 'values_of_two_shards or that_deletes'",
        (
            "ingest: a key may come with the values of two shards",
            "        if moves and len(routed) > 1:",
            "        if False:",
        ),
        (
            "ingest: a row may delete its key in another shard than the one that has it",
            "        if deleted is not None:\n            self._check_deleted",
            "        if False:\n            self._check_deleted",
        ),
    ),
    *mutations(
        "memwal/ingest/target.py",
        f"{_ONE_SHARD} lancedb_s",
        (
            "ingest: programs write a value whose rows wait in two shards",
            "            router.waiting = find_waiting(router, self.view, self.stores.wal, places)",
            "            router.waiting = ()",
        ),
    ),
    *mutations(
        "memwal/ingest/target.py",
        f"{_ONE_SHARD} 'lancedb_s or are_staged'",
        (
            "ingest: where rows were staged for, nobody asks who else holds the values",
            "            router.waiting = find_waiting(router, self.view, self.stores.wal, places)",
            "            router.waiting = find_waiting(router, self.view, self.stores.wal)",
        ),
    ),
    *mutations(
        "memwal/ingest/target.py",
        f"{_ONE_SHARD} 'nobody_knows or made_from or can_not_be_read'",
        (
            "ingest: shards of which nobody knows the values are passed over",
            "    if found:",
            "    if False:",
        ),
        (
            "ingest: rows in the WAL only are passed over",
            "    return bool(shard.pending) or wal.find_unflushed(shard.manifest) is not None",
            "    return bool(shard.pending)",
        ),
        (
            "ingest: any row proves a shard's value",
            "            if shard.shard_id in router.derive_ids(batch):",
            "            if router.derive_ids(batch):",
        ),
        (
            "ingest: a shard that can't be read holds nothing",
            "    found = [str(b.shard_id) for b in view.broken if b.shard_id not in known]",
            "    found: list[str] = []",
        ),
    ),
    *mutations(
        "memwal/ingest/apply.py",
        f"{_SPARK_WRITER} under_its_id",
        (
            "spark writes: who brings other rows is told that they are in",
            "            check_turn(staged, *found, finished=True)",
            "            pass",
        ),
    ),
    *mutations(
        "memwal/ingest/plan.py",
        f"{_SPARK_WRITER} 'passed or under_its_id or spec_that_changed'",
        (
            "spark writes: a batch from before the latest is written again",
            "    if staged.number < number:",
            "    if False:",
        ),
        (
            "spark writes: other rows under the number of a written batch are nothing to do",
            "    if staged.number == number and finished and planned != rows:",
            "    if False:",
        ),
        (
            "spark writes: rows go where an older shard spec had them go",
            "    if staged.spec_id != table.spec_id:",
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/ingest/apply.py",
        f"{_SPARK_WRITER} without_rows",
        (
            "spark writes: a batch that is not finished is passed",
            "        if staged is not None and unfinished is not None and staged.number > unfinished[0].number:",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/ingest/apply.py",
        f"{_SPARK_WRITER} passed",
        (
            "spark writes: a batch that was written is planned again",
            "        if before is not None and before[0].number == staged.number:",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/ingest/spark/writer.py",
        f"{_SPARK_WRITER} 'under_its_id or does_not_name'",
        (
            "spark writes: an abort removes rows that a plan names",
            "        objects.delete(sorted(mine - named))",
            "        objects.delete(sorted(mine))",
        ),
        (
            "spark writes: two attempts of a task store under one name",
            "self.write_id)}/{SystemClock().new_id()}",
            "self.write_id)}/0",
        ),
    ),
    *mutations(
        "memwal/ingest/progress/resume.py",
        f"{_SPARK_WRITER} wakes_up",
        (
            "ingest: a run writes a round again that was finished and forgotten",
            "        self.records.check_latest()",
            "        pass",
        ),
    ),
    *mutations(
        "memwal/ingest/routing.py",
        "tests/ingest/test_one_key_one_shard.py -k can_not_be_read",
        (
            "ingest: staged rows pass to a value's readable shard while its other one is broken",
            "        self._check_readable(place.values, derived)\n",
            "",
        ),
    ),
    *mutations(
        "memwal/ingest/plan.py",
        f"{_SPARK_WRITER} other_rows",
        (
            "spark writes: other rows, as many to a shard, pass for a repeat",
            "r.digest != known.get(r.shard_id, r.digest)",
            "False",
        ),
    ),
    *mutations(
        "memwal/ingest/progress/identity.py",
        f"{_SPARK_WRITER} other_rows",
        (
            "spark writes: only the last part's rows are compared",
            "    return sum(digests) % _DIGESTS",
            "    return [*digests][-1] % _DIGESTS",
        ),
    ),
    *mutations(
        "memwal/ingest/progress/resume.py",
        "tests/ingest/test_ingest_exactly_once.py -k any_calls",
        (
            "ingest: the second copy of one row's call is taken for the next call",
            "        return len(stored.batches) == last.batches",
            "        return last.rows.num_rows > 1 and len(stored.batches) == last.batches",
        ),
        (
            "ingest: a call that looks like the last one is taken for its copy",
            "        if last.number + 1 in self._begun:",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/store/records/ingests.py",
        "tests/ingest/test_ingest_identity.py -k wakes_up",
        (
            "ingest: a run begins a round again that others finished and followed",
            "latest is None or latest[0].number != self.number:",
            "self.read_plan() is None:",
        ),
    ),
    *mutations(
        "memwal/store/records/ingests.py",
        f"{_SPARK_WRITER} stands_for",
        (
            "ingest: a round's plan goes with the rest",
            'if not self._objects.delete([f"{self.folder}/plan.json"]).failed:',
            "if True:",
        ),
        (
            "ingest: the rest goes where a round's plan stays",
            'if not self._objects.delete([f"{self.folder}/plan.json"]).failed:',
            'if self._objects.delete([f"{self.folder}/plan.json"]):',
        ),
    ),
    *mutations(
        "memwal/ingest/track.py",
        "tests/ingest/test_ingest_command.py -k shown_as_done",
        (
            "ingest: rows are shown as done before they are durable",
            "        while self._shown and self._shown[0].epoch <= epoch:",
            "        while self._shown:",
        ),
    ),
    *mutations(
        "memwal/ingest/values/shape.py",
        "tests/ingest/test_shape.py",
        (
            "ingest: a column of any type deletes",
            "        if not pa.types.is_boolean(kind) and not pa.types.is_null(kind):",
            "        if False:",
        ),
        ("ingest: a key column deletes", "        if name in self.key:", "        if False:"),
        (
            "ingest: a missing column becomes NULL unasked",
            "        if missing and not (deleted is not None and pc.all(deleted).as_py()):",
            "        if False:",
        ),
        (
            "ingest: one deleted row lets the others have NULL",
            "pc.all(deleted).as_py()",
            "pc.any(deleted).as_py()",
        ),
        (
            "ingest: a struct's missing members become NULL unasked",
            '            found += _find_gaps(own, other, f"{path}.") if own and other else ()',
            "            del own, other",
        ),
    ),
    *mutations(
        "memwal/read/store/winners.py",
        f"{_ONE_SHARD} read_tells",
        (
            "read: a key in two shards is not told, keys first",
            "            if distinct > self._hidden.count:",
            "            if False:",
        ),
    ),
    *mutations(
        "memwal/read/store/winners.py",
        f"{_ONE_SHARD} read_tells",
        (
            "read: a key in two shards is not told, held",
            "        if self._distinct == hidden.count:",
            "        if True:",
        ),
    ),
    *mutations(
        "memwal/jobs/verify/plan.py",
        "tests/jobs/verify/test_verify_plan.py",
        (
            "verify: a key in two shards is fine",
            "    problems = [] if found is None else [str(found)]",
            "    problems: list[str] = []",
        ),
        (
            "verify: keys that were not compared are fine",
            "    if rows > rows_max:",
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/ingest/coordinator/core.py",
        "tests/ingest/test_writer.py -k 'forked'",
        ("writer: used in a forked child", "    if os.getpid() != made_in:", "    if False:"),
    ),
    *mutations(
        "memwal/ingest/writer.py",
        "tests/ingest/test_writer.py -k 'forked or dropped or ends'",
        ("writer: a child closes its parent's", "    if os.getpid() != made_in:", "    if False:"),
        (
            "writer: a dropped one is not closed",
            "            _close(coordinator, handler)\n",
            "            pass\n",
        ),
    ),
    *mutations(
        "memwal/ingest/shards.py",
        "tests/ingest/test_writer.py -k 'ends'",
        (
            "writer: what is pending when Python ends is lost",
            "        except RuntimeError:",
            "        except AttributeError:",
        ),
    ),
    *mutations(
        "memwal/ingest/values/python_rows.py",
        "tests/ingest/test_writer.py -m 'not integration'",
        (
            "writer: a column that some dicts lack becomes NULL",
            "        if missing and not (missing_as_null or",
            "        if False and not (missing_as_null or",
        ),
        (
            "writer: values that don't fit are cut",
            "        inferred.cast(kind)",
            "        return pa.array(values, kind)",
        ),
    ),
    *mutations(
        "memwal/ingest/progress/identity.py",
        "tests/ingest/test_ingest_identity.py",
        (
            "ingest: a file that was touched is new",
            "    return files.read_digest(now) == before.digest",
            "    return False",
        ),
        (
            "ingest: a file that was written anew, as large as it was, is the same",
            "    return files.read_digest(now) == before.digest",
            "    return True",
        ),
        (
            "ingest: a file of another size is the same at one time",
            "    if before.size_bytes != now.size_bytes:",
            "    if False:",
        ),
        (
            "ingest: a file of another etag is the same at one time",
            "    if before.stamp == now.stamp and (not before.etag or not now.etag):",
            "    if before.stamp == now.stamp:",
        ),
        (
            "ingest: a Lance source that changed is read from where it ended",
            "    if files.describe_fragments(now, before.last_fragment).digest != before.digest:",
            "    if False:",
        ),
        (
            "ingest: another table in a Lance source's place is gone on with",
            '    return "" if planned.digest == now.digest else "was written anew"',
            '    return ""',
        ),
    ),
    *mutations(
        "memwal/ingest/plan.py",
        "tests/ingest/test_ingest_identity.py -k order",
        (
            "ingest: the order of the sources is not asked for",
            "    sources = [_name_source(source, request.spooled) for source in request.sources]",
            "    sources = sorted(_name_source(s, request.spooled) for s in request.sources)",
        ),
    ),
    *mutations(
        "memwal/ingest/sources/text_files.py",
        "tests/ingest/test_source_kinds.py -k lines",
        (
            "ingest: a column that a line lacks becomes NULL unasked",
            "        if not row.keys() >= needed:",
            "        if False:",
        ),
        (
            "ingest: a column that only later lines have is passed over",
            "        if not row.keys() <= known:",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/ingest/values/shape.py",
        "tests/ingest/test_source_kinds.py -k text_that_is_no_value",
        (
            "ingest: bytes in two spellings are taken as they are",
            "    if 0 < in_hex < len(there):",
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/store/shards/writers.py",
        "tests/ingest/test_shard_writers.py -k column_that_came",
        (
            "ingest: a column that came meanwhile is the rows' fault",
            "            if self._schema is not None and self._tables.base().schema != self._schema:",
            "            if False:",
        ),
    ),
    *mutations(
        "memwal/store/shards/writers.py",
        "tests/ingest/test_shard_writers.py -k that_was_beaten",
        (
            "ingest: a claim that was beaten hides the sentinel of the one that is",
            "            if not head.fence_sentinel and head.writer_epoch < epoch:",
            "            if head.writer_epoch < epoch:",
        ),
    ),
    *mutations(
        "memwal/ingest/progress/resume.py",
        "tests/ingest/test_shard_writers.py -k that_was_beaten",
        (
            "ingest: what was collected counts as of a claim that was beaten",
            "        epoch = max(epoch, whose)",
            "        epoch = whose",
        ),
    ),
)
