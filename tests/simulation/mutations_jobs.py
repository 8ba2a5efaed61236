"""Mutations of the jobs' own guards, as the command line meets them."""

from __future__ import annotations

from tests.simulation.mutation_list import Mutation, mutations

_GARBAGE = (
    "tests/jobs/garbage/test_garbage.py tests/faults/test_garbage_faults.py -m 'not spark' -k"
)
_ODD_STORES = "tests/store/test_odd_stores.py -k"

JOBS: tuple[Mutation, ...] = (
    *mutations(
        "memwal/jobs/schema/plan.py",
        "tests/jobs/schema",
        (
            "schema: an index outlasts the change of its column",
            "return frozenset(ids | {*list_ids(self.rewritten)}) - {NEW}",
            "return frozenset()",
        ),
        (
            "schema: a type may become narrower",
            "    if not is_exact(old, new):",
            "    if False:",
        ),
        (
            "schema: a column of the key may change",
            "if (why := self.fixed.get(top.name)) is not None:",
            "if (why := self.fixed.get(top.name)) is not None and False:",
        ),
        (
            "schema: a column that rows expire by may change",
            'if why is None or done == "required"',
            'if True or why is None or done == "required"',
        ),
    ),
    *mutations(
        "memwal/jobs/schema/store.py",
        "tests/jobs/schema",
        (
            "schema: the former type is not written down",
            "    if column.former_types:",
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/schema/apply.py",
        "tests/jobs/schema",
        (
            "schema: an index that was built meanwhile stays",
            "if done.commits else ()",
            "if False else ()",
        ),
        (
            "schema: dropped indexes are forgotten before they are built",
            '            self.steps("note")\n            self.table.put_note(',
            '            self.steps("note")\n            (lambda note: None)(',
        ),
    ),
    *mutations(
        "memwal/jobs/rescue/store.py",
        "tests/jobs/schema -k rescue",
        (
            "rescue: a WAL of a former schema stays stuck",
            "if _FORMER_SCHEMA.search(str(error)):",
            "if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/status/plan.py",
        "tests/jobs/status/test_attention.py tests/jobs/status/test_status_wal.py",
        (
            "status: unflushed rows are silent for no time",
            "else max((wal.idle_seconds or 0.0 for wal in wals if wal.unflushed), default=0.0),",
            "else 0.0,",
        ),
        (
            "status: an entry that a generation has is told as unflushed",
            "            unflushed = 0",
            "            pass",
        ),
    ),
    *mutations(
        "memwal/jobs/status/report.py",
        "tests/jobs/status/test_attention.py",
        (
            "status: silence is no reason to look",
            "if s.unflushed_wal_entries and _is_silent(s.idle_seconds)",
            "if False",
        ),
    ),
    *mutations(
        "memwal/options.py",
        "tests/cli/test_requests.py",
        (
            "options: a number below its bound is taken",
            "        if least is not None and value < least:",
            "        if False:",
        ),
        (
            "options: a word that is none of the choices is taken",
            "        if self.choices and value not in self._list_known():",
            "        if False:",
        ),
        (
            "options: a shard's id is not checked",
            "            return self.option.parse(value)",
            "            return value",
        ),
        (
            "options: a request of another kind forgets what was asked for",
            "for f in fields(cast(Any, kind)) if f.name in own}",
            "for f in fields(cast(Any, kind)) if False}",
        ),
    ),
    *mutations(
        "memwal/jobs/status/report.py",
        "tests/jobs/status/test_due.py -k broken",
        (
            "status: of a shard that can't be read nothing is merged",
            "        merged_generation=0 if isinstance(shard, StrangerShard) else merged,\n",
            "",
        ),
    ),
    *mutations(
        "memwal/store/tables/view.py",
        "tests/jobs/status/test_attention.py",
        (
            "status: what an overwrite left in _mem_wal is not mentioned",
            "folders_only=True).shards) if latest else 0",
            "folders_only=True).shards) if False else 0",
        ),
    ),
    *mutations(
        "memwal/cli/output.py",
        "tests/jobs/status/test_attention.py",
        (
            "output: an error is said twice on one terminal",
            "                if once and table is not None:",
            "                if False:",
        ),
    ),
    *mutations(
        "memwal/run/stores.py",
        "tests/run/test_launch.py",
        (
            "jobs: an untested pylance is taken",
            "not in TESTED_LANCE_MAJORS and not allowed:",
            "in () and not allowed:",
        ),
    ),
    *mutations(
        "memwal/run/stores.py",
        "tests/run/test_launch.py",
        (
            "jobs: an old view is as good as a fresh one",
            "(stores, view) if age_seconds <= OPENED_BEFORE_SECONDS_MAX else None",
            "(stores, view)",
        ),
    ),
    *mutations(
        "memwal/run/tables.py",
        "tests/run/test_launch.py",
        (
            "jobs: a table may be named twice",
            "            if places & seen:",
            "            if False:",
        ),
        (
            "jobs: the lease is not asked before a commit",
            "        if self.lease is not None:\n            self.lease.check()",
            "        if False:\n            self.lease.check()",
        ),
        (
            "jobs: leases are not given up when a job fails",
            "            if options.leases is None or ended is not None:",
            "            if False:",
        ),
    ),
    *mutations(
        "memwal/run/lease.py",
        "tests/run/test_lease_chain.py",
        (
            "chain: leases are not given up",
            "                held.release()",
            "                pass",
        ),
        (
            "chain: a snapshot refresh shares the chain's claim",
            "            if own_claim:",
            "            if False:",
        ),
        (
            "chain: a refresh goes by the chain's name",
            "        name = job if own_claim else self._name or job",
            "        name = self._name or job",
        ),
        (
            "chain: the jobs after a refresh are taken for one",
            "            elif self._claim.job != job:",
            "            elif False:",
        ),
        (
            "chain: the next job's lease has no heartbeat",
            "        finally:\n            self._start_heart()",
            "        finally:\n            pass",
        ),
    ),
    *mutations(
        "memwal/jobs/maintain/job.py",
        "tests/jobs/maintain/test_maintain.py -k gives_its_lease_back",
        (
            "maintain: a table that stops keeps its lease",
            "                leases.give_back(table.uri)",
            "                pass",
        ),
    ),
    *mutations(
        "memwal/run/workers/pool.py",
        "tests/run/test_workers.py -k 'dead_worker or grew'",
        (
            "workers: one that dies is replaced at once",
            "        deaths.start_after = self.clock.monotonic_seconds() + min(wait, _RESTART_SECONDS_MAX)",
            "        del wait",
        ),
        (
            "workers: one that grew is kept",
            '            return "grown"',
            "            pass",
        ),
    ),
    *mutations(
        "memwal/run/process/signals.py",
        "tests/run/test_signals.py",
        (
            "signals: the main thread sleeps through what another was given",
            "                    signal.pthread_kill(main, signal.SIGURG)",
            "                    pass",
        ),
    ),
    *mutations(
        "memwal/run/workers/process.py",
        "tests/run/test_workers.py -k 'signals or parent'",
        (
            "workers: signals are theirs, too",
            "    ignore_signals()\n    os.set_inheritable",
            "    os.set_inheritable",
        ),
        (
            "workers: the unit in hand is cut off when the parent is gone",
            "    _cancel(worker)\n    threading.Event().wait(ORPHANED_SECONDS_MAX)",
            "    threading.Event().wait(0)",
        ),
    ),
    *mutations(
        "memwal/jobs/snapshot/job.py",
        "tests/jobs/maintain/test_maintain.py -k one_lease",
        ("snapshot: it shares a claim with the jobs around it", ", own_claim=True", ""),
    ),
    *mutations(
        "memwal/run/tables.py",
        f"{_ODD_STORES} 'is_refused and merge'",
        (
            "odd stores: a lease is taken in a store that was not proven",
            "        self.prove_store()\n        if options.lease",
            "        if options.lease",
        ),
    ),
    *mutations(
        "memwal/run/records.py",
        f"{_ODD_STORES} 'no_record'",
        (
            "odd stores: a run is recorded in a store that was not proven",
            "            table.prove_store()\n",
            "",
        ),
    ),
    *mutations(
        "memwal/jobs/lease/job.py",
        f"{_ODD_STORES} 'is_refused and break'",
        (
            "odd stores: a lease is broken in a store that was not proven",
            "            stores.prove_store()\n",
            "",
        ),
    ),
    *mutations(
        "memwal/ingest/apply.py",
        f"{_ODD_STORES} 'is_refused and ingest and not spark or another_process'",
        (
            "odd stores: an ingest begins in a store that was not proven",
            "        table.check_shards()\n        self.prove_store()\n",
            "        table.check_shards()\n",
        ),
        (
            "odd stores: an ingest goes on in a store that was not proven",
            "        self.prove_store()  # a round that goes on was begun by another process\n",
            "",
        ),
    ),
    *mutations(
        "memwal/ingest/writer.py",
        f"{_ODD_STORES} 'program'",
        (
            "odd stores: a writer opens in a store that was not proven",
            "        stores.prove_store()\n",
            "",
        ),
    ),
    *mutations(
        "memwal/run/engines/pool.py",
        "tests/run/test_launch.py",
        (
            "jobs: a unit that raises ends later runs",
            "                on_done(done)\n        return",
            "                on_done(done)\n            [f.result() for f in futures]\n        return",
        ),
    ),
    *mutations(
        "memwal/threads.py",
        "tests/run/test_launch.py",
        (
            "jobs: an interrupt does not stop units",
            "        stop()\n        raise",
            "        raise",
        ),
    ),
    *mutations(
        "memwal/run/engines/spark.py",
        "tests/run/test_spark_deaths.py -k another_pylance",
        (
            "executors: nobody looks at them before the first unit",
            "        self._require_executors()\n        group = ",
            "        group = ",
        ),
        (
            "executors: those that come late are not looked at",
            "        if fault := find_fault(self.driver):",
            "        if fault := None:",
        ),
    ),
    *mutations(
        "memwal/run/engines/executors.py",
        "tests/run/test_executors.py",
        (
            "executors: a missing module is found out by the unit",
            "module in sys.modules or importlib.util.find_spec(module) is not None",
            "True",
        ),
        (
            "executors: versions are not compared",
            "        if here[name] != version:",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/cli/flags.py",
        "tests/cli/test_options.py",
        (
            "options: of two configurations of one table the first is good enough",
            "        elif _pick_settings(table) != _pick_settings(before):",
            "        elif False:",
        ),
        (
            "options: a table's address hides its configuration",
            "        if before.name not in config.tables:",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/cli/flags.py",
        "tests/cli/test_names.py",
        (
            "options: of several tables, a command for one takes the first",
            "        if len(found) > 1:",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/store/tables/namespaces.py",
        "tests/store/test_namespaces.py",
        (
            "namespaces: versions that the namespace manages are committed past it",
            "    if found.managed_versioning:",
            "    if False:",
        ),
        (
            "namespaces: what a server repeats of its headers is shown",
            """        if name not in ("uri", "root", "delimiter") and len(value) > 3:""",
            "        if False:",
        ),
        (
            "namespaces: credentials of two owners are mixed",
            "    beaten = names | (_CREDENTIALS if names & _CREDENTIALS else set())",
            "    beaten = names",
        ),
        (
            "namespaces: Lance keeps the credentials that it was given first",
            "    if OPTION not in storage_options or EXPIRY not in options:",
            "    if True:",
        ),
    ),
    *mutations(
        "memwal/store/objects/cloud.py",
        "tests/store/test_namespaces.py",
        (
            "namespaces: clouds keep the credentials that they were given first",
            "            self._choose = Renewed(storage_options, clock).now",
            "            pass",
        ),
    ),
    *mutations(
        "memwal/store/objects/s3_client.py",
        "tests/store/test_namespaces.py",
        (
            "namespaces: our own requests keep the credentials that they were given first",
            "    vended = _are_vended(options)",
            "    vended = False",
        ),
    ),
    *mutations(
        "memwal/config/names.py",
        "tests/cli/test_names.py",
        (
            "names: a table's own name is a glob of others",
            "    if is_address(table) or table in config.tables:",
            "    if is_address(table):",
        ),
        (
            "names: --all goes beyond what is named",
            "    if everything and given:",
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/config/__init__.py",
        "tests/test_config.py",
        (
            "configuration: it redefines an address",
            "    section = None if is_address(table) else config.tables.get(table)",
            "    section = config.tables.get(table)",
        ),
        (
            "configuration: a file that somebody else put here is taken",
            "    if not asked and not _is_own(file):",
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/config/storage_options.py",
        "tests/test_config.py",
        (
            "configuration: it sends variables to an address of its choice",
            "    if (is_place or _ENDPOINT.search(option)) and _VARIABLE.search(value):",
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/cli/flags.py",
        "tests/cli/test_bad_input.py -k current_folder",
        (
            "configuration: a file of the current folder is taken without a word",
            "    if not quiet and find_named_file(config) is None and Path(DEFAULT_FILE).exists():",
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/run/process/whole_file.py",
        "tests/cli/test_whole_file.py",
        (
            "files: one that is there already is written to",
            "os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW",
            "os.O_WRONLY | os.O_CREAT",
        ),
        (
            "files: two runs share a name",
            ".{SystemClock().new_id()}.partial",
            ".partial",
        ),
    ),
    *mutations(
        "memwal/cli/console.py",
        "tests/cli/test_shown_text.py",
        (
            "terminal: a plain text is shown as it is",
            "        return super().render_str(one_line(text), **options)",
            "        return super().render_str(text, **options)",
        ),
        (
            "terminal: a styled text is shown as it is",
            "        if isinstance(renderable, Text) and not renderable.plain.isprintable():",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/text.py",
        "tests/cli/test_shown_text.py",
        (
            "terminal: control characters are plain ones",
            '_UNSHOWN = ("Cc", "Cf", "Cs", "Zl", "Zp")',
            "_UNSHOWN = ()",
        ),
    ),
    *mutations(
        "memwal/cli/progress.py",
        "tests/cli/test_shown_text.py",
        (
            "terminal: a log line is written as it is",
            "[info] {one_line(text)}",
            "[info] {text}",
        ),
    ),
    *mutations(
        "memwal/jobs/snapshot/job.py",
        "tests/jobs/snapshot/test_snapshot.py -m 'not spark' -k 'command or lease'",
        (
            "snapshot: it runs without the lease",
            "    if not options.lease and not options.dry_run:",
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/garbage/job.py",
        f"{_GARBAGE} 'exit_codes or lease or never_merged or expired_first or within_the_grace'",
        (
            "garbage: limits are not checked",
            "    check_retention(options.request)\n",
            "",
        ),
    ),
    *mutations(
        "memwal/jobs/rescue/job.py",
        "tests/jobs/rescue/test_rescue.py -m 'not spark' -k 'obeyed or lease or dry_run'",
        (
            "rescue: nobody is asked",
            "        if not options.confirm(table.resolved.name, due):",
            "        if False:",
        ),
        ("rescue: no lease is taken", '        table.take_lease("rescue", options)\n', ""),
    ),
    *mutations(
        "memwal/format/layout.py",
        "tests/format/test_shard_names.py",
        (
            "shards: a beginning that several ids have names the first",
            "    if len(found) == 1:\n        return ShardId",
            "    if found:\n        return ShardId",
        ),
    ),
    *mutations(
        "memwal/jobs/status/plan.py",
        "tests/jobs/status/test_fail_if.py",
        (
            "status: a condition on what is not known does not hold",
            "        return value is None or _OPERATORS",
            "        return value is not None and _OPERATORS",
        ),
        (
            "status: a table is measured without the shards that can't be read",
            "    if view.broken:\n        return Measures",
            "    if False:\n        return Measures",
        ),
        (
            "status: an index of which nothing is recorded has no lag",
            "view.mem_wal.index_catchup.get(name, {})",
            "view.mem_wal.index_catchup.get(name)",
        ),
    ),
    *mutations(
        "memwal/identity.py",
        "tests/cli/test_identity.py",
        (
            "identity: another project's package is run",
            '    if getattr(package, "DISTRIBUTION", None) == DISTRIBUTION:',
            "    if True:",
        ),
    ),
)
