"""Mutations of restores: what keeps the old table's writers out, and what a kill leaves."""

from __future__ import annotations

from tests.simulation.mutation_list import mutations

_PURE = "tests/jobs/restore/test_restore_plan.py"
_REAL = "tests/jobs/restore/test_restore.py -k"
_PLAN = "memwal/jobs/restore/plan.py"
_APPLY = "memwal/jobs/restore/apply.py"
_STORE = "memwal/jobs/restore/store.py"

RESTORE = (
    *mutations(
        _APPLY,
        "tests/jobs/audit/test_audit.py -k 'finds_on_its_way'",
        (
            "restore: what it removes is not written down first",
            "        done.removed += paths\n        self.intend(done)\n",
            "        done.removed += paths\n",
        ),
        (
            "restore: a version that others raised is not written down first",
            "            self.intend(done)  # others may have raised the version\n",
            "",
        ),
    ),
    *mutations(
        _APPLY,
        f"{_REAL} 'before_the_mark or made_again or until_its_writer'",
        (
            "restore: shards' manifests are copied into a table that is open",
            "was_table and is_read_at_once(f, done.backup)",
            "False",
        ),
        (
            "restore: another version of that number is replaced",
            "        if base.path in place.files:\n            # It can",
            "        if False:\n            # It can",
        ),
        (
            "restore: ingests that go on until the fence are resumed",
            "        self._put_ingests_aside(done, place)  #",
            "        #",
        ),
    ),
    *mutations(
        _PLAN,
        f"{_REAL} 'folder_was_deleted'",
        (
            "restore: the epoch is the next one",
            "default=0) + layout.LEAP",
            "default=0) + 1",
        ),
    ),
    *mutations(
        _PLAN,
        _PURE,
        (
            "restore: the WAL goes on at once",
            "    sentinel = position + layout.LEAP",
            "    sentinel = position + 1",
        ),
        (
            "restore: what a shard has that the backup does not know stays listed",
            "        current_generation=1,\n        flushed_generations=(),",
            "        current_generation=1,",
        ),
        (
            "restore: what is there is no reason to refuse",
            "    if request.over or (place.is_empty and mark is None):",
            "    if request.over or mark is None:",
        ),
        (
            "restore: another backup's restore is gone on with",
            "    if (mark.backup, mark.objects_sha256) != (backup.name, backup.objects_sha256):",
            "    if False:",
        ),
        (
            "restore: a place of backups is restored over",
            "    if place.has_backups:",
            "    if False:",
        ),
        (
            "restore: a list may lack what the document names",
            "        if path not in paths:",
            "        if False:",
        ),
        (
            "restore: manifests go between those of a shard that is there",
            "            and within[0] not in there\n",
            "",
        ),
        (
            "restore: an ingest that went on is believed",
            "        if max(file.modified_at_nanos for file in files) >= before",
            "        if False",
        ),
    ),
    *mutations(
        _STORE,
        f"{_REAL} 'its_writer_is_fenced or killed_in_a_new_place'",
        (
            "restore: no sentinel at the old tip",
            "for position in tips):",
            "for position in ()):",
        ),
        (
            "restore: the mark is taken for a table's version",
            "            mark = read_restore_mark(self._objects, files[versions[marked]])",
            "            mark = None",
        ),
    ),
    *mutations(
        _STORE,
        f"{_REAL} 'new_place'",
        (
            "restore: an empty WAL has no sentinel",
            "            self._objects.put_if_absent("
            "layout.wal_entry_path(shard_id, planned.sentinel), data)",
            "            pass",
        ),
        (
            "restore: nothing is said of versions that the new place lacks",
            "            config=name_restored(version, backup.mem_wal_since_nanos),",
            "            config={},",
        ),
    ),
    *mutations(
        _STORE,
        f"{_REAL} 'over_a_table_its'",
        (
            "restore: a commit that was begun before finds no transaction",
            "            transaction_file=file,",
            '            transaction_file="none",',
        ),
    ),
    *mutations(
        "memwal/store/tables/generations.py",
        f"{_REAL} 'never_merged'",
        (
            "restore: an index is taken to be as old as the backup says, proven or not",
            "    return int(found[2]) or None if found",
            "    return int(found[2]) if found",
        ),
    ),
    *mutations(
        _STORE,
        f"{_REAL} 'damaged_backup or broken_table'",
        (
            "restore: what has the right size is taken for whole",
            "        return there.sha256 == found.sha256",
            "        return there.size_bytes == found.size_bytes",
        ),
        (
            "restore: a manifest that can't be read stays",
            "        self._objects.put(path, layout.encode_stopper(self._clock.now_nanos()))",
            "        pass",
        ),
        (
            "restore: copies are not compared with the list",
            "to=to, expected=found)",
            "to=to)",
        ),
    ),
    *mutations(
        _APPLY,
        f"{_REAL} 'acknowledged or comes_between or killed or gone_again or lands_before or damaged_backup'",
        (
            "restore: a claim in between stands",
            "                if attempt == _ATTEMPTS_MAX:\n                    raise",
            "                break",
        ),
        (
            "restore: nobody holds the version's name",
            "                self.place.mark(path, mark, over=place.marked_version > 0)\n",
            "                pass\n",
        ),
        (
            "restore: nobody looks whether all is there",
            "        if gone:",
            "        if False:",
        ),
        (
            "restore: a table is held before the backup was read",
            "        if not was_table:\n",
            "        if True:\n",
        ),
        (
            "restore: what the old WAL had is not kept",
            "                self._keep_copies(restore_id, waiting)\n",
            "",
        ),
        (
            "restore: what is replaced is not kept",
            '        self.steps("aside")\n        self.place.put_aside(path, restore_id)\n        self',
            "        self",
        ),
    ),
    *mutations(
        "memwal/format/restores.py",
        f"{_REAL} 'over_a_table_its'",
        (
            "restore: the restored version leads to another's transaction",
            '    message.ClearField("transaction_section")\n',
            "",
        ),
    ),
    *mutations(
        "memwal/store/tables/view.py",
        f"{_REAL} 'killed_over_a_table and claim'",
        (
            "restore: nobody says why the table can't be opened",
            "                check_restored(self._objects)\n",
            "",
        ),
    ),
    *mutations(
        "memwal/store/shards/writers.py",
        f"{_REAL} 'memwal_is_fenced'",
        (
            "restore: rows that are gone are called safe",
            "        if latest.writer_epoch - epoch >= layout.LEAP // 2:",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/verify/plan.py",
        f"{_REAL} 'over_a_table_its_writer or over_a_broken'",
        (
            "restore: what a writer left whom it shut out is damage of the table",
            "        and manifest.writer_epoch - (entry.writer_epoch or 0) < layout.LEAP // 2\n",
            "",
        ),
    ),
)
