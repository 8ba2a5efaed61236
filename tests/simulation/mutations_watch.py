"""Mutations of a watch: who is worked on and when, what is left alone, how it ends."""

from __future__ import annotations

from tests.simulation.mutation_list import mutations

LOOP = "tests/jobs/watch/test_watch_apply.py"
PLAN = "tests/jobs/watch/test_watch_plan.py"
REAL = "tests/jobs/watch/test_watch.py"
_APPLY = "memwal/jobs/watch/apply/__init__.py"
_TABLE = "memwal/jobs/watch/apply/table_state.py"
_PLAN = "memwal/jobs/watch/plan.py"

WATCH = (
    *mutations(
        _PLAN,
        f"{PLAN} {LOOP}",
        (
            "watch: a table that had its round is before those that wait",
            "return table.last_began > longest[table.priority], late",
            "return False, late",
        ),
        (
            "watch: a priority does not count",
            "return table.last_began > longest[table.priority], late * table.priority",
            "return table.last_began > longest[table.priority], late",
        ),
        (
            "watch: the table's name decides who is next",
            "late * table.priority, table.table",
            "0.0, table.table",
        ),
        (
            "watch: a round begins when the target is missed",
            "max(0.0, min(target.freshness_seconds * _ACT_AT, left))",
            "target.freshness_seconds",
        ),
        (
            "watch: the time that a round takes is not left for it",
            "look_seconds - _ROUNDS_SPARED * round_seconds",
            "look_seconds",
        ),
        (
            "watch: nobody makes room for those that are due soon after",
            "    left -= queue_seconds\n",
            "",
        ),
        (
            "watch: an index whose entry was erased is late at once",
            "if not recorded and age > target.freshness_seconds:",
            "if False:",
        ),
        (
            "watch: a flush is as old as the clocks say at each look",
            "known.get(generation, now - age)",
            "now - age",
        ),
        (
            "watch: a shard that failed is tried at once",
            "for s, at in lag.mergeable.items() if s not in aside}",
            "for s, at in lag.mergeable.items()}",
        ),
        (
            "watch: an index that failed is tried at once",
            "for n, at in lag.unindexed.items() if name_index(n) not in aside}",
            "for n, at in lag.unindexed.items()}",
        ),
        (
            "watch: what fails again is left alone no longer",
            "limits.every_seconds * 2.0 ** min(failures, 30)",
            "limits.every_seconds * 2.0",
        ),
        (
            "watch: upkeep that finds nothing is as frequent",
            "wait = min(seconds * _UPKEEP_GROWTH_MAX, before.wait_seconds * 2) if idle else seconds",
            "wait = seconds",
        ),
    ),
    *mutations(
        _TABLE,
        LOOP,
        (
            "watch: a lease that is held is a failure",
            "        if job.report.outcome != HELD:\n            yield",
            "        if True:\n            yield",
        ),
        (
            "watch: a round that changes nothing is begun again",
            "        if progress != lag.progress:\n",
            "        if True:\n",
        ),
        (
            "watch: a table whose rounds fail is tried at once",
            "{TABLE, PROGRESS} & self.find_aside(now)",
            "{PROGRESS} & self.find_aside(now)",
        ),
        (
            "watch: upkeep is done while the table is late",
            "spare and self.late_since is None and not aside",
            "spare",
        ),
        (
            "watch: an index that never catches up holds up merges",
            "keys = [PROGRESS] if MERGE in jobs else [name_index(name) for name in lag.unindexed]",
            "keys = [PROGRESS]",
        ),
    ),
    *mutations(
        _APPLY,
        LOOP,
        (
            "watch: long upkeep takes all workers",
            "len(self._keeping) >= max(1, self.limits.rounds_max // 2)",
            "len(self._keeping) >= self.limits.rounds_max",
        ),
        (
            "watch: one table's upkeep keeps that of others waiting for ever",
            "key=lambda state: (state.upkeep_due_at, state.name)",
            "key=lambda state: state.name",
        ),
        (
            "watch: what is wrong is told each time",
            "if state.told.get(key) == str(error):",
            "if False:",
        ),
        (
            "watch: a table that goes away loses its round",
            "        if state.running is not None:\n            state.gone",
            "        if False:\n            state.gone",
        ),
        (
            "watch: a broken configuration takes the tables away",
            "            self._misread = True\n",
            "            self._misread = True\n            self.watch(())\n",
        ),
        (
            "watch: what ends while it stops is lost",
            "        for end in self.workers.stop(bound):\n            self._take_end(end)",
            "        self.workers.stop(bound)",
        ),
        (
            "watch: it begins rounds while it stops",
            "        if not self.stopping:\n            self._begin_looks(now)",
            "        if True:\n            self._begin_looks(now)",
        ),
    ),
    *mutations(
        "memwal/jobs/watch/options.py",
        PLAN,
        (
            "watch: garbage is looked for that nobody allowed",
            "collects=self.settings.garbage_execute or table.settings.retention is not None",
            "collects=True",
        ),
        (
            "watch: garbage is deleted that nobody allowed",
            "execute=settings.garbage_execute",
            "execute=True",
        ),
    ),
    *mutations(
        "memwal/jobs/watch/options.py",
        "tests/jobs/watch/test_watch_options.py",
        (
            "watch: each process asks a store as often as all may",
            "split_rate(table.storage_options, processes)",
            "split_rate(table.storage_options, 1)",
        ),
    ),
    *mutations(
        "memwal/jobs/watch/job.py",
        f"{REAL} -k guards",
        (
            "watch: a short retention is refused by the first garbage job",
            "    check_retention(rounds.request)\n",
            "",
        ),
    ),
    *mutations(
        "memwal/cli/watch.py",
        f"{REAL} -k configuration",
        (
            "watch: without its file, a name is a path",
            "if before is not None and self._mark is None:",
            "if False:",
        ),
    ),
)
