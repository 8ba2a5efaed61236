"""Mutations of commits that shards share."""

from __future__ import annotations

from tests.simulation.mutation_list import Mutation, mutations

_FAKE = "tests/jobs/merge/test_merge_shared.py -m 'not integration'"
_REAL = "tests/jobs/merge/test_merge_shared.py -k local"
_PLANNED = "tests/jobs/merge/test_merge_shared_plan.py"

_PLAN = mutations(
    "memwal/jobs/merge/plan.py",
    _PLANNED,
    (
        "shared: an unguarded fold takes part",
        "or not is_guarded(fact, Join.SCAN)",
        "or False",
    ),
    (
        "shared: rows made of the base's take part",
        "if fact.deletes_with_rows or",
        "if",
    ),
    ("shared: tombstones are not counted together", "        room -= fact.tombstones\n", ""),
    ("shared: tombstones stay in the base", "if any(f.tombstones for f in facts):", "if False:"),
    (
        "shared: the index join needs one guard only",
        "all(is_guarded(f, Join.INDEX) for f in facts)",
        "any(is_guarded(f, Join.INDEX) for f in facts)",
    ),
    (
        "shared: a full commit takes one more shard",
        "not bins or not room.take(size, **taken)",
        "not bins",
    ),
    (
        "shared: rows are held beyond the limit of memory",
        "return min(limits.bytes_per_commit_max, SHARED_BYTES_MAX)",
        "return limits.bytes_per_commit_max",
    ),
    (
        "shared: a shard of unknown size takes part",
        "if None in sizes or total",
        "if total",
    ),
    (
        "shared: a table with a policy shares",
        "    if view.policy_text is not None:",
        "    if False:",
    ),
)

_ROOM = mutations(
    "memwal/jobs/merge/plan.py",
    _PLANNED,
    (
        "shared: no bound on shards",
        "self.shards + shards <= self.limits.shards_per_commit_max",
        "True",
    ),
)

_APPLY = mutations(
    "memwal/jobs/merge/apply/shared_commits.py",
    _FAKE,
    (
        "shared: a lost lease is not looked at",
        "        single.before_commit()\n",
        "",
    ),
    (
        "shared: who was kept from looking has nothing to do",
        "        if not self.runs[shard_id].is_seen:\n            return False\n",
        "",
    ),
    (
        "shared: progress that fell goes unnoticed",
        "                self.single.check_same_table(run, view, seen[shard_id], bounded)\n",
        "",
    ),
    (
        "shared: a store that is down is asked shard by shard",
        "        except (StoreUnavailable, OutcomeUnknown) as everywhere:\n"
        "            stopped = everywhere",
        "        except (StoreUnavailable, OutcomeUnknown):\n"
        "            rounds.alone.update(shard_ids)",
    ),
    (
        "shared: a store that fails while folding is not looked at",
        "            if self.unreached:\n",
        "            if False:\n",
    ),
    (
        "shared: what landed without an answer is not looked for",
        "                view = self._look_after_error(plans, error)\n",
        "",
    ),
    (
        "shared: shards that can't share are dropped",
        "            self.alone.update(plans)\n        return together\n",
        "            self.bounded.clear()\n        return together\n",
    ),
    (
        "shared: shards that don't fit are dropped",
        "                self.alone.update(chosen)\n                continue\n",
        "                return\n",
    ),
    (
        "shared: races have no end",
        "lost < ATTEMPTS_MAX and ",
        "",
    ),
)

_STORE = mutations(
    "memwal/jobs/merge/store/commits.py",
    _REAL,
    (
        "shared: a key in two shards is written twice",
        "    if known.count != len(every):",
        "    if False:",
    ),
    (
        "shared: the commit deletes nothing",
        "lambda: rows, join=shape.join, deletes=dead, marks=marks",
        "lambda: rows, join=shape.join, deletes=None, marks=marks",
    ),
    (
        "shared: one shard's mark is left out",
        "{shard: marks[shard] for shard in self.members}",
        "{shard: marks[shard] for shard in list(self.members)[:1]}",
    ),
    (
        "shared: rows are told apart by the version that the commit made",
        "batches = self.before.scanner",
        "batches = self.base.scanner",
    ),
    (
        "shared: rows are counted for another shard",
        "parts = np.repeat(np.arange(len(sizes)), sizes)[self.keys.sort_rows(self.every.columns)]",
        "parts = np.repeat(np.arange(len(sizes)), sizes)",
    ),
)

_TURNS = (
    *mutations(
        "memwal/jobs/merge/store/commits.py",
        "tests/jobs/merge/test_turns.py -k not_alone",
        (
            "turns: nobody waits before one was refused",
            "        if not self._alone and inserts_many():",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/merge/store/commits.py",
        "tests/jobs/merge/test_turns.py -k knows_whether",
        (
            "turns: what has few new keys waits as well",
            "        return live - self._sum_found()[0] >= _COMPARED_MIN",
            "        return live >= _COMPARED_MIN",
        ),
    ),
)

MERGE_SHARED: tuple[Mutation, ...] = (*_PLAN, *_ROOM, *_APPLY, *_STORE, *_TURNS)
