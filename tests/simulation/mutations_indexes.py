"""Mutations of index catch-up and compaction."""

from __future__ import annotations

from tests.simulation.mutation_list import Mutation, mutations

_PLAN = "tests/jobs/index_catchup/test_index_catchup_plan.py"
_COSTS = "tests/jobs/index_catchup/test_index_costs.py"
_APPLY = "tests/jobs/index_catchup/test_index_catchup_apply.py"
_TABLES = (
    "tests/jobs/index_catchup/test_index_catchup.py "
    "tests/jobs/index_catchup/test_index_catchup_beside.py -m 'not spark'"
)
_COMPACTION = "tests/jobs/compaction/test_compaction_apply.py"

INDEXES: tuple[Mutation, ...] = (
    *mutations(
        "memwal/jobs/index_catchup/plan.py",
        f"{_PLAN} {_APPLY}",
        (
            "catch-up: unknown index names pass",
            "        if table.index(name) is None:\n            known",
            "        if False:\n            known",
        ),
        (
            "catch-up: an index that can't be trained is tried",
            "        if index.is_vector and not index.covered and not self._is_trainable:",
            "        if False:",
        ),
        (
            "catch-up: an index that Lance can't extend is tried",
            "        if index.is_nested and not self._takes_segments:",
            "        if False:",
        ),
        (
            "catch-up: a retrain that can't train is made",
            "if self.asked is Method.RETRAIN and self.table.fragments and self._is_trainable:",
            "if self.asked is Method.RETRAIN and self.table.fragments:",
        ),
        (
            "catch-up: old segments answer under stable row ids",
            "            if self.table.stable_row_ids and (index.is_nested or large or asked is Method.SEGMENTS):",
            "            if False:",
        ),
        (
            "catch-up: some segments are left under stable row ids",
            "    if table.stable_row_ids:\n        return len(index.segments)\n",
            "",
        ),
        (
            "catch-up: the segment that a model was trained on is merged",
            "    segments = index.segments[1:] if index.is_vector else index.segments",
            "    segments = index.segments",
        ),
        (
            "catch-up: segments pile up",
            "        if segments > limits.retrain_segments_max:",
            "        if False:",
        ),
        (
            "catch-up: a model is kept for rows that it never saw",
            "    if percent > limits.retrain_unindexed_percent_max:",
            "    if False:",
        ),
        (
            "catch-up: skewed data is trained for ever",
            "        and _grown_percent(table, index) >= self._growth_percent_min\n",
            "",
        ),
        (
            "catch-up: a training that did not help is done again",
            " if helped else _DOUBLED_PERCENT",
            "",
        ),
        (
            "catch-up: a tiny partition has the index trained again",
            "    counted = sorted(partition_rows)[max(1, len(partition_rows) // 10) :]",
            "    counted = sorted(partition_rows)",
        ),
    ),
    *mutations(
        "memwal/jobs/index_catchup/plan.py",
        _TABLES,
        (
            "catch-up: segments of an empty full-text index forget its stop words",
            " or bool(index.covered)\n",
            " or True\n",
        ),
    ),
    *mutations(
        "memwal/store/tables/indexes.py",
        _TABLES,
        (
            "catch-up: a full-text index forgets its own stop words",
            '        settings |= part.get("params", {})\n',
            "        pass\n",
        ),
    ),
    *mutations(
        "memwal/jobs/index_catchup/store.py",
        _TABLES,
        (
            "catch-up: a full-text index changes its format",
            '    return {**settings, "format_version": version or None}',
            "    return settings",
        ),
    ),
    *mutations(
        "memwal/indexes.py",
        f"{_PLAN} {_APPLY}",
        (
            "catch-up: an absent entry is caught up",
            "known.get(s, -1) < generation",
            "known.get(s, generation) < generation",
        ),
        (
            "catch-up: a merged fragment need not be covered",
            "f for f in self.fragments if f.fragment_id not in covered",
            "f for f in self.fragments[:-1] if f.fragment_id not in covered",
        ),
    ),
    *mutations(
        "memwal/jobs/index_catchup/plan.py",
        _COSTS,
        (
            "catch-up: records are believed whatever they say",
            "min(CORRECTION_MAX, max(1 / CORRECTION_MAX, factor))",
            "factor",
        ),
        ("catch-up: costs go by rows alone", "rows * per_row + size * per_byte", "rows * per_row"),
    ),
    *mutations(
        "memwal/jobs/index_catchup/apply.py",
        _APPLY,
        (
            "catch-up: the goal is not checked",
            "        if run.error is not None or (goal.is_reached(look, name) and not run.owes_retrain):",
            "        if True:",
        ),
        (
            "catch-up: a lost lease is one index's trouble",
            "        except LeaseHeld:\n            raise\n",
            "",
        ),
        (
            "catch-up: the lease is not asked before a commit",
            "        self.before_commit()\n",
            "",
        ),
        ("catch-up: the lease is not taken", "        self.take_lease()\n", ""),
        (
            "catch-up: what was planned without the lease is all",
            "view if self.is_current else self.views.table())",
            "view)",
        ),
        (
            "catch-up: a dry run is none",
            "        if dry_run or not any(",
            "        if not any(",
        ),
        (
            "catch-up: commits that cover nothing go on for ever",
            "        if run.error is None and run.committed and done.indexes and not gained:",
            "        if False:",
        ),
        (
            "catch-up: a segment that failed is left out",
            "                if isinstance(result, MemWalError):\n                    raise result",
            "                if isinstance(result, MemWalError):\n                    continue",
        ),
        (
            "catch-up: what was undone is not told",
            "    if not reached and error is None:",
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/index_catchup/apply.py",
        _APPLY,
        (
            "catch-up: coverage is all that counts",
            "        if index is None or find_behind(look.recorded(name), self.merged):",
            "        if index is None:",
        ),
        (
            "catch-up: what is recorded is all that counts",
            "        return not left & self.fragments",
            "        return True",
        ),
        (
            "catch-up: a lost retrain is forgotten",
            "        return self.method is Method.RETRAIN and not self.retrained",
            "        return False",
        ),
        (
            "catch-up: an index that can't be caught up is tried",
            "        if self.plan.refusal is not None:",
            "        if False:",
        ),
        (
            "catch-up: faults have no bound",
            "        if self.faults >= limits.fault_attempts_max:",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/ports.py",
        f"{_APPLY} {_COMPACTION}",
        (
            "backoff: waiting has no deadline",
            "    if clock.monotonic_seconds() + seconds > deadline_seconds:",
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/store/tables/lance_calls.py",
        _TABLES,
        (
            "catch-up: a conflict is a fault like any other",
            "    if _CONFLICT.search(str(error)):\n        return LostRace(text)",
            "    if False:\n        return LostRace(text)",
        ),
    ),
    *mutations(
        "memwal/store/tables/indexes.py",
        _TABLES,
        ("catch-up: Lance's own indexes are taken along", " if i.name not in SYSTEM_INDEXES]", "]"),
    ),
    *mutations(
        "memwal/jobs/index_catchup/store.py",
        _TABLES,
        (
            "catch-up: a retrain on too few rows",
            "    if rows < PQ_TRAINING_ROWS_MIN:",
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/compaction/plan.py",
        "tests/jobs/compaction/test_compaction_plan.py",
        ("compaction: tasks have no bound", "[: limits.compaction_tasks_max]", ""),
    ),
    *mutations(
        "memwal/jobs/compaction/apply.py",
        _COMPACTION,
        (
            "compaction: entries are not put back",
            '        if run.commits:\n            self.steps("restore")\n            run.indexes = self.catch_up()\n',
            "",
        ),
        (
            "compaction: indexes are not caught up before",
            "        run.indexes = self.catch_up()\n        self._compact(run)",
            "        self._compact(run)",
        ),
        (
            "compaction: the lease is not asked",
            '        self.before_commit()\n        self.steps("commit")',
            '        self.steps("commit")',
        ),
        (
            "compaction: a commit after an error is not looked for",
            "                if self._has_landed(rewritten):",
            "                if False:",
        ),
        (
            "compaction: one task that is gone proves the commit",
            "        return not any(there.intersection(r.fragment_ids) for r in rewritten)",
            "        return not all(there.intersection(r.fragment_ids) for r in rewritten)",
        ),
        (
            "compaction: a task that failed is committed as if it hadn't",
            "        done = [r for r in results if isinstance(r, RewrittenFragments)]",
            "        done = list(results)",
        ),
        (
            "compaction: the lease is not taken",
            "        self.take_lease()\n        started = self.clock.monotonic_seconds()\n",
            "        started = self.clock.monotonic_seconds()\n",
        ),
        (
            "compaction: an index that is behind is no work",
            "        if dry_run or not (works or behind):",
            "        if dry_run or not works:",
        ),
        (
            "compaction: a dry run is none",
            "        if dry_run or not (works or behind):",
            "        if not (works or behind):",
        ),
    ),
    *mutations(
        "memwal/jobs/compaction/apply.py",
        "",
        (
            "simulated: a compaction catches up before it commits only",
            "        if run.commits:\n",
            "        if False:\n",
        ),
    ),
)
