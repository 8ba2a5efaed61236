"""Mutations of what notices damaged files: `verify`, and reads."""

from __future__ import annotations

from tests.simulation.mutation_list import mutations

_FILES = "tests/jobs/verify/test_verify_files.py"

DAMAGE = (
    *mutations(
        "memwal/run/tables.py",
        "tests/jobs/merge/test_lost_version.py -k 'commits and merge'",
        (
            "damage: a job commits where the newest version was lost",
            "            self.stores.views.check_newest(0 if self.view is None else self.view.version)\n",
            "            pass\n",
        ),
    ),
    *mutations(
        "memwal/store/tables/view.py",
        "tests/jobs/merge/test_lost_version.py -k 'status'",
        (
            "damage: a hint beyond the newest version proves nothing",
            "if there and version > there[-1]:",
            "if False:",
        ),
    ),
    *mutations(
        "memwal/store/records/runs.py",
        "tests/jobs/merge/test_lost_version.py -k 'witnesses or lower'",
        (
            "damage: where no hint is written, nothing tells of a lost version",
            "if version > newest.version and at_nanos",
            "if False and at_nanos",
        ),
        (
            "damage: what was written before a restore tells of a lost version",
            " and at_nanos > newest.timestamp_nanos",
            "",
        ),
    ),
    *mutations(
        "memwal/jobs/verify/store.py",
        "tests/jobs/restore/test_restore.py -k 'expired'",
        (
            "damage: a restore that has expired is a fall of progress",
            "(find_restored(after.config) or 0) > before.version",
            "False",
        ),
    ),
    *mutations(
        "memwal/jobs/verify/store.py",
        _FILES,
        (
            "damage: deletions of another fragment are not noticed",
            "            if problem is not None and not known:\n",
            "            if False:\n",
        ),
        (
            "damage: deletions in a generation are not looked at",
            "        error = next(filter(None, map(find_fault, fragments)), None)\n",
            "",
        ),
        (
            "damage: files that a checkpoint alone needs are not looked at",
            "                bases.append(self.tables.base(kept.version))\n",
            "                self.tables.base(kept.version)\n",
        ),
        (
            "damage: a checkpoint's version may be gone",
            "                faults.append(FileFault(path=path, problem=text))\n        sizes = {",
            "        sizes = {",
        ),
        (
            "damage: generations that a checkpoint alone lists are not looked at",
            "            if found.error is not None:\n                checkpoint = needed",
            "            if False:\n                checkpoint = needed",
        ),
        (
            "damage: the newest version may be an older one by another name",
            "            return [FileFault(path=_path_of(newest), problem=error.text)]\n",
            "            return []\n",
        ),
        (
            "damage: a flush during verify is taken for a lost manifest",
            "        return replace(hint, newest=max(",
            "        return hint and replace(hint, newest=min(",
        ),
    ),
    *mutations(
        "memwal/store/records/checkpoints.py",
        _FILES,
        (
            "damage: a checkpoint's tag may name another version",
            'return tag["branch"] is None and tag["version"] == checkpoint.version\n',
            "return True\n",
        ),
    ),
    *mutations(
        "memwal/store/tables/pages.py",
        _FILES,
        (
            "damage: a deep look reads no page",
            "    for _ in batches:\n        pass\n",
            "    del batches\n",
        ),
    ),
    *mutations(
        "memwal/jobs/verify/checks.py",
        _FILES,
        (
            "damage: a store that is away is taken for damage",
            "            ok = False if isinstance(error, Corruption) else None\n",
            "            ok = False\n",
        ),
        (
            "damage: a flush during a look is taken for a lost manifest",
            " if texts and not facts.has_moved(seen[s])}\n",
            " if texts}\n",
        ),
    ),
    *mutations(
        "memwal/jobs/repair/plan.py",
        "tests/jobs/repair/test_repair_apply.py",
        (
            "damage: what was not looked for again counts as mended",
            "    return all(made.get(name, not failed) for name in damage.checks)\n",
            "    return True\n",
        ),
    ),
    *mutations(
        "memwal/jobs/verify/plan.py",
        _FILES,
        (
            "damage: WAL entries out of order are not noticed",
            "        problems += wal.broken or list_replay_problems(shard.manifest, wal)\n",
            "        problems += wal.broken\n",
        ),
    ),
    *mutations(
        "memwal/read/store/faults.py",
        _FILES,
        (
            "damage: a damaged file is a store that is away",
            "    if is_panic(error) or tells_of_damage(error):\n",
            "    if is_panic(error):\n",
        ),
        (
            "damage: a file that is gone was collected",
            "        if is_latest():\n",
            "        if False:\n",
        ),
    ),
)
