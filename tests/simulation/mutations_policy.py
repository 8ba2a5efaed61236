"""Mutations of row-merge policies."""

from __future__ import annotations

from tests.simulation.mutation_list import Mutation, mutations

_FOLD = "tests/rows/test_policy_fold.py"
_OPERATORS = "tests/rows/test_policy_operators.py"
_MERGE = "tests/jobs/merge/test_policy_merge.py"
_READ = "tests/read/test_policy_read.py"
_SHOWN = "tests/jobs/status/test_policy_shown.py"

POLICY: tuple[Mutation, ...] = (
    *mutations(
        "memwal/rows/policy_fold.py",
        _FOLD,
        (
            "policy: a value is no barrier",
            "        self._barrier = self._tombstone | ~operand",
            "        self._barrier = self._tombstone",
        ),
        (
            "policy: an expired value stays",
            "        self._tombstone = dead | (over & ~operand)",
            "        self._tombstone = dead",
        ),
        (
            "policy: an expired operand counts",
            "        self._dropped = operand & over & ~dead",
            "        self._dropped = operand & False",
        ),
        (
            "policy: an expired row of the base counts",
            "            over = self._find_expired(base)",
            "            over = self._find_expired(base) & False",
        ),
        (
            "policy: a key may be in the base twice",
            "        if len(twice):",
            "        if False:",
        ),
        (
            "policy: keys that may be gone are anchors",
            "        there[self._groups.codes[unsure]] = False",
            "        pass",
        ),
        (
            "policy: one column's end ends all",
            "            found &= operator.find_ends(",
            "            found = operator.find_ends(",
        ),
        (
            "policy: a base row that lives longer is left out",
            "        if self._policy.expiry is None:\n            open_",
            "        if True:\n            open_",
        ),
        (
            "policy: operators are bound to no keys",
            "                if operator.needs_key:",
            "                if False:",
        ),
        (
            "policy: the base is asked though all folds ended",
            "            open_ &= ~self._find_ended()",
            "            pass",
        ),
        (
            "policy: the first part's expiry is the result's",
            "    latest = np.maximum.reduceat(times, starts)",
            "    latest = times[starts]",
        ),
    ),
    *mutations(
        "memwal/rows/policy_operators.py",
        _OPERATORS,
        (
            "policy: a user's operator may change the type",
            "found.type != left.type or len(found)",
            "len(found)",
        ),
        (
            "policy: an operator gets another pair's key",
            "            *self._take_keys(groups[lefts]),",
            "            *self._take_keys(groups[lefts] * 0),",
        ),
        (
            "policy: the value that ends a fold is left out",
            "    kept = np.arange(len(values)) >= np.repeat(ends, counts)",
            "    kept = np.arange(len(values)) > np.repeat(ends, counts)",
        ),
        (
            "policy: the oldest value that ends a fold ends it",
            "    return np.maximum.reduceat(np.where(wanted, np.arange(len(wanted)), -1), starts)",
            "    return np.minimum.reduceat(np.where(wanted, np.arange(len(wanted)), -1), starts)",
        ),
        (
            "policy: a fold does not end early",
            "    if not operator.may_end or not len(starts):",
            "    if True:",
        ),
    ),
    *mutations(
        "memwal/rows/policy_operators.py",
        _OPERATORS,
        (
            "policy: one list alone ends a fold, and is not cut",
            "        several = np.arange(len(values)) < stops[groups] - 1",
            "        several = np.arange(len(values)) < stops[groups]",
        ),
        (
            "policy: a sum out of its type's range passes",
            "    outside = np.flatnonzero(under | over)",
            "    outside = np.flatnonzero(under & over)",
        ),
        (
            "policy: a list keeps its oldest elements",
            "            newest = ends[owner] - places <= self.cap",
            "            newest = places <= self.cap",
        ),
    ),
    *mutations(
        "memwal/store/tables/policy_rows.py",
        _MERGE,
        (
            "policy: superseded rows are left out",
            "        include_deleted_rows=True,",
            "        include_deleted_rows=False,",
        ),
        (
            "policy: rows may be missing",
            "    if generation.physical_rows is not None and len(table) != generation.physical_rows:",
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/merge/apply/shard.py",
        f"{_MERGE} -k before_the_turn",
        (
            "turns: what others merged meanwhile is merged again",
            "                        if not _is_next(plan, view.shards[0]):",
            "                        if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/merge/apply/shard.py",
        f"{_MERGE} -k longer_prefix",
        (
            "policy: a longer prefix may take more bytes than a commit",
            "generations_per_commit_max=2 * len(plan.generations))",
            "generations_per_commit_max=2, bytes_per_commit_max=2**60)",
        ),
    ),
    *mutations(
        "memwal/jobs/merge/apply/shard.py",
        "tests/jobs/merge/test_turns.py",
        (
            "turns: who waited does not look again",
            "                    if held:\n",
            "                    if False:\n",
        ),
    ),
    *mutations(
        "memwal/jobs/merge/store/base_table.py",
        _MERGE,
        (
            "policy: rows of the base are the latest, whatever the view",
            "        self._base = self.tables.at(self.view.version)",
            "        self._base = self.tables.base()",
        ),
        (
            "policy: tombstones stay out",
            "deletes=outcome.deleted,",
            "deletes=None,",
        ),
        (
            "policy: columns that changed meanwhile are not looked at",
            "        if (view.columns, view.policy_text) != (self.view.columns, self.view.policy_text):",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/store/tables/policy_rows.py",
        _MERGE,
        (
            "policy: keys that Lance does not compare are taken",
            "    if not new_keys_are_compared(types):",
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/read/store/policy_read.py",
        _READ,
        (
            "policy: expired rows of the base are shown",
            "        return found if expiry is None else",
            "        return found if True else",
        ),
        (
            "policy: a key that can't be folded is left out of what may want it",
            "            return match_rows(where, keys, predicate)",
            "            return np.zeros(len(keys), dtype=bool)",
        ),
        (
            "policy: a filter of several columns rules out every key that can't be folded",
            "        found |= inside",
            "        found &= inside",
        ),
        (
            "policy: the filter is asked of no folded row",
            "        if predicate is None or not len(table):",
            "        if True:",
        ),
    ),
    *mutations(
        "memwal/read/store/wal_rows.py",
        _READ,
        (
            "policy: rows of the WAL are the newest only",
            "view.primary_key if view.policy_text is None else ()",
            "view.primary_key",
        ),
    ),
    *mutations(
        "memwal/jobs/snapshot/apply.py",
        _SHOWN,
        (
            "policy: a table with one gets a snapshot",
            "        wanted = None if view.policy_text is not None else self._want(view)",
            "        wanted = self._want(view)",
        ),
    ),
    *mutations(
        "memwal/run/policy_choice.py",
        _MERGE,
        (
            "policy: the configuration may say otherwise",
            "    if wanted is not None and stored is not None and not is_stored(wanted, stored):",
            "    if False:",
        ),
        (
            "policy: it is stored without the lease",
            "    if not options.lease or table.stores is None:",
            "    if table.stores is None:",
        ),
    ),
)
