"""Mutations of rows that expire."""

from __future__ import annotations

from tests.simulation.mutation_list import Mutation, mutations

_ROWS = "tests/rows/test_expire.py"
_READ = "tests/read/test_expired.py"
_APPLY = "tests/jobs/compaction/test_compaction_apply.py"
_PURGE = "tests/jobs/compaction/test_purge.py"
_INIT = "tests/jobs/init/test_init.py"

EXPIRE: tuple[Mutation, ...] = (
    *mutations(
        "memwal/rows/expire.py",
        _ROWS,
        (
            "expire: a row without a time is hidden",
            '        kept=f"({name} IS NULL OR {name} >= {literal})",',
            '        kept=f"({name} >= {literal})",',
        ),
        (
            "expire: a row at the horizon is purged",
            '        expired=f"{name} < {literal}",',
            '        expired=f"{name} <= {literal}",',
        ),
        (
            "expire: a day goes before its first moment is too old",
            "time if is_whole else time + timedelta(days=1)",
            "time + timedelta(days=1)",
        ),
        (
            "expire: any column tells a time",
            "    if types[expire.column] not in _TYPES:",
            "    if False:",
        ),
        (
            "expire: a newer build's setting is taken for ours",
            '        case {"format": 1, ',
            "        case {",
        ),
        (
            "expire: rows that a policy folds expire",
            "    if view.policy_text is not None:",
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/read/plan/sources.py",
        _READ,
        (
            "expire: reads show what has expired",
            "    horizon = find_horizon(view, cut_nanos)",
            "    horizon = None",
        ),
        (
            "expire: rows of an old version go on expiring",
            "    cut_nanos = now_nanos if request.version is None else view.manifest.timestamp_nanos",
            "    cut_nanos = now_nanos",
        ),
    ),
    *mutations(
        "memwal/read/store/winners.py",
        _READ,
        (
            "expire: an older row reappears below one that has expired",
            "        chosen = np.concatenate(found)\n",
            "        chosen = np.concatenate(found)\n"
            "        if self._matched is not None:\n"
            "            chosen = np.flatnonzero(self._matched)\n",
        ),
    ),
    *mutations(
        "memwal/read/table.py",
        _READ,
        (
            "expire: rows of a checkpoint go on expiring",
            "now_nanos if kept is None else lambda: kept.created_at_nanos",
            "now_nanos",
        ),
    ),
    *mutations(
        "memwal/jobs/compaction/apply.py",
        "",
        (
            "simulated: expire: the host's clock decides",
            "        cut_nanos = self.read_store_time(self.clock.new_id())",
            "        cut_nanos = self.clock.now_nanos()",
        ),
    ),
    *mutations(
        "memwal/jobs/compaction/apply.py",
        _APPLY,
        (
            "expire: each attempt has a cut of its own",
            "            self._judge_age(run, view, cut_nanos)\n            if",
            "            cut_nanos = self.read_store_time(self.clock.new_id())\n"
            "            self._judge_age(run, view, cut_nanos)\n            if",
        ),
        (
            "expire: the lease is not asked",
            '            self.before_commit()\n            self.steps("purge")',
            '            self.steps("purge")',
        ),
        (
            "expire: a dry run does not tell",
            "        works = bool(plan.tasks or run.purged)",
            "        works = bool(plan.tasks)",
        ),
    ),
    *mutations(
        "memwal/jobs/compaction/plan.py",
        _APPLY,
        (
            "expire: a purge has no cost",
            "        > limits.materialize_deletions_threshold * fragment.rows",
            "        > 0",
        ),
    ),
    *mutations(
        "memwal/store/tables/datasets.py",
        _INIT,
        (
            "expire: a policy is stored beside it",
            "        if EXPIRE_KEY in dataset.config():",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/compaction/store.py",
        _PURGE,
        (
            "expire: what lives is purged",
            "dataset.delete(horizon.expired, conflict_retries=0)",
            "dataset.delete(horizon.kept, conflict_retries=0)",
        ),
        (
            "expire: a race is not told",
            "dataset.delete(horizon.expired, conflict_retries=0)",
            "dataset.delete(horizon.expired)",
        ),
    ),
)
