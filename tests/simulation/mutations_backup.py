"""Mutations of backups: what counts as one, what is copied, and what may be deleted."""

from __future__ import annotations

from tests.simulation.mutation_list import mutations

_REAL = "tests/jobs/backup/test_backup.py"
_PLAN = "tests/jobs/backup/test_backup_plan.py"
_APPLY = "memwal/jobs/backup/apply.py"
_PLANS = "memwal/jobs/backup/plan.py"
_STORED = "memwal/store/records/backups.py"
_COPYING = "memwal/store/objects/copying.py"

BACKUP = (
    *mutations(
        "memwal/format/codec.py",
        f"{_REAL} -k somebody_s_checkpoint",
        (
            "backup: a mark may name any checkpoint",
            "    if not _BACKUP_PIN.fullmatch(message.pin):",
            "    if False:",
        ),
    ),
    *mutations(
        _APPLY,
        f"{_REAL} -k 'begins or clocks or before_the_hints or nobody_else'",
        (
            "backup: a place is not looked at again under its lease",
            "        if place.ours or (mark",
            "        if (mark",
        ),
        (
            "backup: hints of what killed drops left stay",
            "            gone |= find_shards(one.path for one in self.documents.objects_of_left(name))",
            "            pass",
        ),
        (
            "backup: another clock makes an older one the newest",
            "made_at_nanos=max(backup.made_at_nanos, newest + 1)",
            "made_at_nanos=backup.made_at_nanos",
        ),
        (
            "backup: what is dropped is chosen before the claim",
            "        chosen = self.choose(names, keep, now_nanos)  #",
            "        #",
        ),
    ),
    *mutations(
        "memwal/jobs/backup/store.py",
        f"{_REAL} -k lost_files_of",
        (
            "backup: files of indexes may be missing",
            "        check_there(view.uri, *_list_indexes(dataset, found))",
            "",
        ),
        (
            "backup: files of pending generations may be missing",
            "                check_there(where, named, {file.path for file in files})",
            "                pass",
        ),
    ),
    *mutations(
        _PLANS,
        _PLAN,
        (
            "backup: what other backups need is deleted",
            "    return sorted(paths - needed, key=",
            "    return sorted(paths, key=",
        ),
        (
            "backup: a place that somebody wrote to is taken",
            "    strange = [path for path in sorted(place.sizes) if not _is_expected(path, place)]",
            "    strange = list[str]()",
        ),
        (
            "backup: another history is no matter",
            "    if former_at_nanos not in (None, newest.version_at_nanos):",
            "    if False:",
        ),
        (
            "backup: a table that was rewound is backed up to the same place",
            "    if version < newest.version:",
            "    if False:",
        ),
        (
            "backup: the WAL may have a hole",
            "    if hole is not None:",
            "    if False:",
        ),
        (
            "backup: the highest WAL entry is left behind",
            "    return sorted(kept | ({highest} if highest else set()))",
            "    return sorted(kept)",
        ),
        (
            "backup: entries of an epoch that the manifest does not know come along",
            "    positions = {p for p in positions if p < min(newer, default=layout.U64_MAX)}",
            "    positions = set(positions)",
        ),
        (
            "backup: numbered objects are believed by their size",
            "        elif needed.phase in NUMBERED:",
            "        elif False:",
        ),
        (
            "backup: the newest is dropped for its age",
            "    older = list(backups[:-1])",
            "    older = list(backups)",
        ),
        (
            "backup: a file that is not there is no loss",
            "    if gone:\n",
            "    if False:\n",
        ),
    ),
    *mutations(
        _APPLY,
        f"{_REAL} -k 'collected or beside or stopped_at'",
        (
            "backup: base manifests are copied first",
            "        for phase in Phase:",
            "        for phase in reversed(Phase):",
        ),
        (
            "backup: what was copied is not marked",
            "        mark = replace(mark, paths=tuple(sorted(paths)))\n",
            "",
        ),
        (
            "backup: what is collected meanwhile ends it",
            "                if not (isinstance(error, Missing) or is_passing(error)):",
            "                if True:",
        ),
        (
            "backup: the pin of a killed run stays",
            "        if former is not None and former.pin:",
            "        if False:",
        ),
    ),
    *mutations(
        _APPLY,
        f"{_REAL} -k 'dropp or unread or read_nothing'",
        (
            "backup: documents go after what they need",
            "            self.documents.remove_document(backup.name)\n        remaining",
            "            pass\n        remaining",
        ),
        (
            "backup: hints lead to what was dropped",
            "            self.dest.put_hints(hints, sorted(gone - hints.keys()))",
            "            pass",
        ),
    ),
    *mutations(
        _APPLY,
        f"{_REAL} -k 'another_entry'",
        (
            "backup: another entry under a position is taken for the same",
            "                if needed.phase in NUMBERED:",
            "                if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/garbage/job.py",
        f"{_REAL} -k garbage_is",
        (
            "backup: garbage deletes where backups are",
            "        StoredBackups(stores.objects).refuse_any()\n",
            "",
        ),
    ),
    *mutations(
        _STORED,
        "tests/store/test_backups.py -k 'not s3'",
        (
            "backup: a list is not compared with its document",
            "        if hashlib.sha256(data).digest() != backup.objects_sha256:",
            "        if False:",
        ),
        (
            "backup: a name that is taken is taken again",
            "        if name in self._names():",
            "        if False:",
        ),
        (
            "backup: the list is not stored",
            "            self._objects.put_if_absent(path, data)\n        except AlreadyExists:",
            "            pass\n        except AlreadyExists:",
        ),
    ),
    *mutations(
        _COPYING,
        "tests/store/test_copying.py -k 'not s3 and not az and not gs'",
        (
            "backup: other bytes than expected are stored",
            "        self._check(self.found)\n",
            "",
        ),
        (
            "backup: another object under the path is taken for the same",
            "        if (there.size_bytes, there.sha256) != (found.size_bytes, found.sha256):",
            "        if False:",
        ),
    ),
)
