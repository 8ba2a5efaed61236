"""Mutations of checkpoints: how they are made, what holds by them, how they are read."""

from __future__ import annotations

from tests.simulation.mutation_list import mutations

ORDER = "tests/jobs/checkpoint/test_checkpoint_order.py"
REAL = "tests/jobs/checkpoint/test_checkpoint.py"
_APPLY = "memwal/jobs/checkpoint/apply.py"
_STORE = "memwal/store/records/checkpoints.py"

CHECKPOINT = (
    *mutations(
        _APPLY,
        ORDER,
        (
            "checkpoint: nobody asks whether its version is still the latest",
            "return self.views.table_version() == made.version",
            "return True",
        ),
        (
            "checkpoint: the tag is there before the record",
            '        self.checkpoints.put(made)\n        self.steps("tag")',
            '        self.steps("tag")',
        ),
        (
            "checkpoint: a name that is taken is taken again",
            "if is_other and other.ready and not other.is_expired(now):",
            "if False:",
        ),
        (
            "checkpoint: nobody looks for another of its name at the end",
            "        self._check_free(made.name, but=made.key)\n",
            "",
        ),
        (
            "checkpoint: what failed is left",
            "                    self.checkpoints.remove(made)\n                raise",
            "                    pass\n                raise",
        ),
        (
            "checkpoint: the version that was overtaken stays tagged",
            "            self.checkpoints.remove(made)\n        raise LostRace(",
            "        raise LostRace(",
        ),
        (
            "checkpoint: it is finished without the lease",
            '        self.before_commit()\n        self.steps("ready")',
            '        self.steps("ready")',
        ),
        (
            "checkpoint: unfinished ones of other names are removed",
            "if other.name == name and not other.ready:",
            "if not other.ready:",
        ),
    ),
    *mutations(
        "memwal/jobs/checkpoint/plan.py",
        f"{REAL} -k missing_are_not_kept",
        (
            "checkpoint: rows that are missing are kept",
            "        for hole in find_holes(shard):",
            "        for hole in list(find_holes(shard))[:0]:",
        ),
    ),
    *mutations(
        "memwal/jobs/checkpoint/job.py",
        f"{REAL} -k needs_the_lease",
        (
            "checkpoint: it is made without the lease",
            "if not options.lease and not options.dry_run:",
            "if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/garbage/look.py",
        f"{REAL} -k 'whatever or expires or never_finished'",
        (
            "checkpoint: its cut holds nothing",
            "        cuts = self._cuts.get(shard_id, ())",
            "        cuts = ()",
        ),
        (
            "checkpoint: it holds its cut but for the newest generation",
            "needed = range(cut.merged_generation + 1, cut.generation + 1)",
            "needed = range(cut.merged_generation + 1, cut.generation)",
        ),
        (
            "checkpoint: it never expires for garbage",
            "return not checkpoint.is_expired(self.now_nanos) and (checkpoint.ready or may_go_on)",
            "return checkpoint.ready or may_go_on",
        ),
        (
            "checkpoint: one that is being made is garbage",
            "and (checkpoint.ready or may_go_on)",
            "and checkpoint.ready",
        ),
        (
            "checkpoint: its version holds what was flushed later",
            "if v.merged is not None and not (v.on_main and v.version in checkpointed)",
            "if v.merged is not None",
        ),
    ),
    *mutations(
        "memwal/jobs/garbage/apply/__init__.py",
        f"{REAL} -k 'users_on_its_version or somebody_deleted_expires'",
        (
            "checkpoint: a user's tag on its version holds nothing",
            "else found - claimed",
            "else found",
        ),
        (
            "checkpoint: its version is expired once its tag is gone",
            "        old = frozenset[int]() if untagged else old\n",
            "",
        ),
    ),
    *mutations(
        "memwal/jobs/garbage/store/versions.py",
        f"{REAL} -k reference_that_cant_be_read",
        (
            "checkpoint: a reference that can't be read is to no version of one",
            "return None if None in found else frozenset(v for v in found if v is not None)",
            "return frozenset(v for v in found if v is not None)",
        ),
    ),
    *mutations(
        "memwal/jobs/garbage/apply/deletions.py",
        ORDER,
        (
            "checkpoint: with it goes anybody's tag",
            "    if key is not None and file.path == layout.checkpoint_tag_path(key):",
            "    if key is not None:",
        ),
    ),
    *mutations(
        "memwal/jobs/garbage/kinds/checkpoint.py",
        ORDER,
        (
            "checkpoint: any file is deleted as one",
            "return item.kind == NAME and layout.parse_checkpoint_path(item.path) is not None",
            "return item.kind == NAME",
        ),
    ),
    *mutations(
        _STORE,
        f"{REAL} {ORDER} -k 'cant_be_read or leads_elsewhere or never_finished or killed or expires "
        "or dropped'",
        (
            "checkpoint: a record under another's name is read",
            "        if found is None or found.key != key:",
            "        if found is None:",
        ),
        (
            "checkpoint: a record of another format is read",
            '        if document.pop("format") != _FORMAT:',
            '        if document.pop("format") is None:',
        ),
        (
            "checkpoint: a path in a record is not checked",
            "            layout.check_generation_path(generation.path, generation.generation)\n",
            "",
        ),
        (
            "checkpoint: a shard's name in a record is not checked",
            "        if not layout.is_shard_folder(shard.shard_id):",
            "        if False:",
        ),
        (
            "checkpoint: one that was never finished is read",
            "        if not newest.ready:",
            "        if False:",
        ),
        (
            "checkpoint: one that has expired is read",
            "        if newest.is_expired(now_nanos):",
            "        if False:",
        ),
        (
            "checkpoint: a drop that is cut short leaves it in force",
            "        self.put(replace(checkpoint, expires_at_nanos=0))\n",
            "",
        ),
    ),
    *mutations(
        "memwal/store/tables/view.py",
        f"{REAL} -k another_table",
        (
            "checkpoint: any version of its number is taken for its own",
            "        if view.manifest.timestamp_nanos != found.version_at_nanos:",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/read/table.py",
        "tests/read/test_policy_read.py -k a_checkpoint_has",
        (
            "checkpoint: its rows expire as time goes on",
            "clock.now_nanos if kept is None else lambda: kept.created_at_nanos",
            "clock.now_nanos",
        ),
    ),
    *mutations(
        "memwal/read/plan/sources.py",
        f"{REAL} -k older_version_is_read",
        (
            "read: nobody is told of pending generations in an older version",
            "if request.version is None or request.merged_only is not None or not plan.generations:",
            "if True:",
        ),
    ),
)
