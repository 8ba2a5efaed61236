"""The operator that runs a memwal job; `jobs.py` beside it has a class for each.

With a Spark connection the job is submitted with spark-submit. Without one the memwal command of
the jobs' environment runs it, and starts Spark itself if the work is worth a JVM.
"""

from __future__ import annotations

import inspect
import math
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseHook, BaseOperator, timezone
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
    AirflowTaskTimeout,
)

from memwal.config.requests import describe_option
from memwal.errors import Usage
from memwal.options import DeclaredOption, Kind, list_options
from memwal_airflow.assets.events import add_events_of_job, find_ports
from memwal_airflow.assets.lineage import MERGING, Lineage, TellsLineage, take_outlines
from memwal_airflow.hooks.command import JobsEnvironment
from memwal_airflow.hooks.memwal import MemWalHook
from memwal_airflow.hooks.request import check_name, find_configured_tables, mask, parse_tables
from memwal_airflow.hooks.spark_connection import SparkTarget, read_spark_target
from memwal_airflow.operators.outcomes import Verdict, judge, summarize
from memwal_airflow.operators.page_links import MemWalPageLink
from memwal_airflow.operators.task_metrics import measure_job
from memwal_airflow.operators.task_runs import describe_task, name_run
from memwal_airflow.operators.tries import (
    begin_try,
    end_try,
    find_lost_job,
    has_moved,
    measure_hold,
    take_lost_try,
)
from memwal_airflow.processes.submission import Ended, Submission, make_folder, start
from memwal_airflow.settings import read_dag_config, read_settings
from memwal_airflow.triggers.jobs import JOB_LOG, SETTLE_SECONDS, MemWalJobTrigger, log_group

if TYPE_CHECKING:
    from airflow.sdk import Context

SUMMARY_KEY = "memwal_summary"
_SECONDS_MAX = 7 * 86_400.0
_TRUE, _FALSE = {"true", "1", "yes"}, {"false", "0", "no", "none", ""}
_COMMON_VALUES = ("engine", "memory_max")
_COMMON_SWITCHES = ("no_lease", "allow_untested_lance", "dry_run_only")
# A template that renders to nothing gives a text.
_NOTHING = (None, "", "None")
# Fields that can't be named like their option, because Airflow's operators have such a method.
_ATTRIBUTES = {"execute": "garbage_execute"}
# Polling a local folder is cheap; only a triggerer with hundreds of jobs has to save on it.
_LOCAL_POLL_SECONDS_MAX = 0.5
_KEYWORD = inspect.Parameter.KEYWORD_ONLY


class MemWalRetry(AirflowException):
    """A failure worth another try: the store was away, the lease held too long, the job died."""


class MemWalJobOperator(TellsLineage, BaseOperator):
    """Runs one job over one or several tables.

    :param job: the command's name, such as merge; by default that of the class
    :param tables: a name in memwal.toml, a path, or an s3:// address; or a list of them (templated)
    :param configured_only: refuse a table that memwal.toml does not name, unless its `[airflow]
        any_address` is set; use it where whoever starts a run may name the tables
    :param arguments: more command-line options, passed on unchecked; don't let whoever starts a run
        choose them (templated)
    :param dry_run: report what would be done, change nothing (templated)
    :param engine: auto, spark or local (templated)
    :param memory_max: how much memory the job's process, or each of Spark's executors, may take,
        such as `1GiB`; work that can't fit is refused (templated)
    :param no_lease: work without the table's lease (templated)
    :param allow_untested_lance: run on a pylance that memwal was not tested with (templated)
    :param enabled: if false, skip the job (templated)
    :param conn_id: a `memwal` connection
    :param spark_conn_id: a Spark connection; the job then runs through spark-submit (templated)
    :param deferrable: wait in the triggerer, without a worker slot. Workers and triggerers must
        share `[memwal] run_directory` for this
    :param defer_after_seconds: how long to wait in the worker first. Most jobs are over by then;
        deferring costs them time, and occasionally a try (see the page)
    :param poll_seconds: how often to look at a running job
    :param held_seconds_max: how long to keep looking, every `retry_delay`, while somebody else is
        at work on the table. This uses up no tries, and no worker slot between the looks
    :param skip_when_idle: whether a job with nothing to do ends as skipped rather than as success

    On success a summary of the report is the return value. It is also pushed under the key
    `memwal_summary`, even before a failure. Skipped: nothing to do. Rescheduled: lease held, lost
    race. Retried: lease held for too long, store away. Failed at once: guard, corruption, wrong
    request, partly failed. Killing the task ends the job, and so does `execution_timeout`.
    """

    default_job = ""
    # What the job may be asked: each option that it declares is a templated field.
    request: ClassVar[type | None] = None
    # The common options that the job's command takes. A DAG gives all its jobs the same fields; the
    # ones that a job has no use for are left out.
    common_options: ClassVar[Sequence[str]] = (*_COMMON_VALUES, *_COMMON_SWITCHES)
    template_fields: Sequence[str] = (
        *("tables", "arguments", "enabled", "spark_conn_id", "conn_id"),
        *(*_COMMON_VALUES, *_COMMON_SWITCHES),
    )
    operator_extra_links = (MemWalPageLink(),)
    ui_color = "#dbeafe"

    def __init__(
        self,
        *,
        tables: str | Sequence[str],
        job: str | None = None,
        configured_only: bool = False,
        arguments: Sequence[str] = (),
        dry_run: bool | str = False,
        engine: str | None = None,
        memory_max: str | None = None,
        no_lease: bool | str = False,
        allow_untested_lance: bool | str = False,
        enabled: bool | str = True,
        conn_id: str = MemWalHook.default_conn_name,
        spark_conn_id: str | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        defer_after_seconds: float = 30.0,
        poll_seconds: float = 2.0,
        held_seconds_max: float = 3600.0,
        skip_when_idle: bool = True,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("doc_md", describe(type(self)))
        if not (job := job or self.default_job):
            raise TypeError(f"{type(self).__name__}: job is missing")
        super().__init__(**{**find_ports(job, tables), **kwargs})
        self._announces = job in (*MERGING, "ingest") and "outlets" not in kwargs
        self.job = job
        self.tables = tables
        self.configured_only = configured_only
        self.arguments = list(arguments)
        # Not `dry_run`, nor `execute` in a subclass: Airflow has methods of these names.
        self.dry_run_only = dry_run
        self.engine = engine
        self.memory_max = memory_max
        self.no_lease = no_lease
        self.allow_untested_lance = allow_untested_lance
        self.enabled = enabled
        self.conn_id = conn_id
        self.spark_conn_id = spark_conn_id
        self.deferrable = deferrable
        self.defer_after_seconds = defer_after_seconds
        self.poll_seconds = poll_seconds
        self.held_seconds_max = held_seconds_max
        self.skip_when_idle = skip_when_idle
        self._submission: Submission | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Start the job, and wait for it: here, and then in the triggerer."""
        submission, process = self._find_or_start(context)
        self._submission = submission
        try:
            with log_group(self.log, JOB_LOG):
                ended = self._watch(submission, is_own=process is not None)
        except AirflowTaskTimeout:
            found = self._stop(submission)
            ended = Ended(exit_code=found.exit_code if found else -1, why="timed_out")
        finally:
            if process is not None and process.stdin is not None:
                process.stdin.close()
        if ended is None:
            self.defer(
                trigger=MemWalJobTrigger(
                    folder=str(submission.folder),
                    conn_id=self.conn_id,
                    poll_seconds=self.poll_seconds,
                    log_position=submission.log_position,
                ),
                method_name="execute_complete",
                # The supervisor ends the job in time by itself; this is for when it is gone.
                timeout=timedelta(seconds=self._seconds_max + 300),
            )
        if process is not None:
            process.wait()
        report = submission.read_report()
        last_line = submission.read_last_line()
        secrets = MemWalHook(self.conn_id).environment().secrets
        verdict = judge(ended, report, last_line, secrets)
        return self._conclude(context, submission, ended, *verdict, summarize(report, secrets))

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Resume after the trigger saw the job's end."""
        submission = Submission(event["folder"])
        ended = Ended(exit_code=event["exit_code"], why=event["why"])
        verdict = Verdict(event["verdict"]), event["text"]
        return self._conclude(context, submission, ended, *verdict, event["summary"])

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.request is not None and "request" in vars(cls):
            _add_fields(cls, list_options(cls.request))

    def list_options(self) -> list[str]:
        """The options that the fields stand for, from rendered fields."""
        own = () if self.request is None else list_options(self.request)
        values = (name for name in _COMMON_VALUES if name in self.common_options)
        switches = (name for name in _COMMON_SWITCHES if name in self.common_options)
        return [
            *(word for declared in own for word in self.list_words(declared)),
            *(word for name in values for word in _give(_name_flag(name), getattr(self, name))),
            *(_name_flag(name) for name in switches if is_true(getattr(self, name))),
        ]

    def list_words(self, declared: DeclaredOption) -> list[str]:
        """The words of an option of the job's own. None for a field that has no value."""
        flag, value = declared.flag, getattr(self, name_attribute(declared))
        match declared.kind:
            case Kind.SWITCH | Kind.EITHER:
                return [flag] if is_true(value) else []
            case Kind.LIST | Kind.TEXT if declared.kind is Kind.LIST or declared.option.parse:
                if value in _NOTHING:
                    return []
                found = [value] if isinstance(value, str) else list(value or ())
                return [f"{flag}={_check_value(declared, item)}" for item in found]
            case Kind.PAIRS:
                return [f"{flag}={name}={given}" for name, given in (value or {}).items()]
            case Kind.CHOICES:
                found = [choice for choice in declared.choices if choice in (value or ())]
                return [f"{flag}={','.join(found)}"] if found else []
        return _give(flag, value)

    def check_run(self, context: Context) -> None:
        """Raise Usage for a run that must not do this job."""

    def list_sources(self) -> list[str]:
        """The words after the tables on the command line, from rendered fields."""
        return []

    def on_kill(self) -> None:
        """End the job when Airflow kills the task; the job then gives up its lease."""
        submission = self._submission
        if submission is not None and self._stop(submission) is not None:
            submission.remove()

    def _stop(self, submission: Submission) -> Ended | None:
        submission.cancel()
        deadline = time.monotonic() + 30
        while (ended := submission.read_end()) is None and time.monotonic() < deadline:
            time.sleep(0.2)
        return ended

    @property
    def _seconds_max(self) -> float:
        limit = self.execution_timeout
        return _SECONDS_MAX if limit is None else limit.total_seconds()

    def _find_or_start(self, context: Context) -> tuple[Submission, subprocess.Popen[bytes] | None]:
        """Return the job of a try that Airflow lost, else a new job and its supervisor."""
        instance, directory = context["ti"], read_settings().run_directory
        label = f"{instance.dag_id}-{instance.task_id}-{instance.map_index}-{instance.try_number}"
        submission = None
        try:
            if not is_true(self.enabled):
                raise AirflowSkipException(f"memwal {self.job}: not asked for")
            self.check_run(context)
            jobs = MemWalHook(self.conn_id).environment()
            target = self._read_spark_target()
            lost, told = find_lost_job(context, directory, lambda f: self._command(jobs, target, f))
            if told:
                self.log.warning(told)
            if lost is not None:
                begin_try(context, lost.folder.name)
                return lost, None
            submission = make_folder(directory, label)
            argv = self._command(jobs, target, submission)
        except Usage as error:
            if submission is not None:
                submission.remove()
            found = {**summarize(None), "error": str(error)}
            instance.xcom_push(key=SUMMARY_KEY, value=found)
            raise AirflowFailException(str(error)) from None
        begin_try(context, submission.folder.name)
        with log_group(self.log, "The job's command"):
            self.log.info("Running %s", " ".join(argv))
        task, limit = describe_task(instance), self._seconds_max
        variables = jobs.variables(run_id=name_run(instance), task=task)
        return submission, start(submission, argv, variables, seconds_max=limit, task=task)

    def _command(
        self, jobs: JobsEnvironment, target: SparkTarget | None, submission: Submission
    ) -> list[str]:
        tables = parse_tables(self.tables)
        if self.configured_only:
            tables = find_configured_tables(tables, read_dag_config())
        options, sources = [*self.list_options(), *map(str, self.arguments)], self.list_sources()
        options += ["--report", str(submission.report_file)]
        if target is None:
            return jobs.memwal(self.job, options, tables, sources)
        if target.in_cluster:
            raise Usage(
                f"connection {self.spark_conn_id}: with deploy mode cluster neither the driver's "
                "report nor its end could be seen from here; use client mode (executors run in the "
                "cluster all the same)"
            )
        return target.submit(
            jobs.find_executable(target.binary),
            [*jobs.find_application(self.job), *jobs.arguments(options, tables, sources)],
            name=f"memwal {self.job} {tables[0]}",
            properties=submission.folder / "spark.conf",
        )

    def _read_spark_target(self) -> SparkTarget | None:
        if not self.spark_conn_id or "engine" not in self.common_options:
            return None
        return read_spark_target(BaseHook.get_connection(self.spark_conn_id))

    def _watch(self, submission: Submission, *, is_own: bool) -> Ended | None:
        """Wait for the job's end; None if it still runs and the triggerer is to wait for it."""
        patience = self.defer_after_seconds if self.deferrable else math.inf
        deadline = time.monotonic() + patience
        while True:
            if not is_own:
                submission.mark_watched()
            ended, lines = submission.follow()
            for line in lines:
                self.log.info(line)
            if ended is not None:
                return ended
            left = deadline - time.monotonic()
            if left <= 0:
                submission.release()
                return None
            time.sleep(min(left, self.poll_seconds, _LOCAL_POLL_SECONDS_MAX))

    def _conclude(
        self,
        context: Context,
        submission: Submission,
        ended: Ended,
        decision: Verdict,
        text: str,
        found: dict[str, Any],
    ) -> dict[str, Any]:
        measure_job(self.job, found, context["ti"].stats_tags)
        outlines = take_outlines(found)
        if decision is not Verdict.SUCCESS:
            found = {**found, "error": found.get("error") or text}
        # Before any exception is raised: the progress of a failed task is announced as well.
        found = end_try(
            context,
            found,
            is_reported=found["outcome"] is not None,
            is_held=decision is Verdict.HELD,
            is_last=decision not in (Verdict.RETRY, Verdict.HELD),
        )
        run_id = name_run(context["ti"])
        self.lineage = Lineage(run_id=run_id, summary=found, outlines=outlines)
        context["ti"].xcom_push(key=SUMMARY_KEY, value=found)
        # Not earlier: if Airflow has given up this try, the next one needs the folder.
        submission.forget(ended)
        text = f"memwal {self.job}: {text}"
        if decision is Verdict.FAIL:
            raise AirflowFailException(text)
        if self._is_same_try(context, decision):
            delay = max(self.retry_delay, timedelta(seconds=SETTLE_SECONDS))
            self.log.info("%s; looking again in %s, as the same try", text, delay)
            raise AirflowRescheduleException(timezone.utcnow() + delay)
        if decision in (Verdict.RETRY, Verdict.HELD):
            raise MemWalRetry(text)
        self.log.info(text)
        if (
            decision is Verdict.SKIP
            and self.skip_when_idle
            and not any(map(has_moved, found["tables"]))
        ):
            raise AirflowSkipException(text)
        if self._announces:
            add_events_of_job(self.job, found, context)
        return found

    def _is_same_try(self, context: Context, decision: Verdict) -> bool:
        """Whether to reschedule without using up a try: the lease is held, or a try was lost."""
        if decision is Verdict.HELD:
            held_seconds = measure_hold(context, timezone.utcnow().timestamp())
            return held_seconds < self.held_seconds_max
        return decision is Verdict.RETRY and take_lost_try(context)


def is_true(value: bool | str | None) -> bool:
    """Whether a field is true, also as the text that a template rendered. Raises Usage."""
    text = str(value).strip().lower()
    if text not in _TRUE | _FALSE:
        raise Usage(f"{mask(text)}: expected true or false")
    return text in _TRUE


def describe(kind: type) -> str:
    """Return a class's docstring without its `:param` lines, for Airflow's pages."""
    return (inspect.getdoc(kind) or "").partition("\n\n:param")[0]


def name_attribute(declared: DeclaredOption) -> str:
    """The operator's attribute of a field: `execute`, for one, is a method of every operator."""
    return _ATTRIBUTES.get(declared.field, declared.field)


def _add_fields(kind: type[MemWalJobOperator], options: Sequence[DeclaredOption]) -> None:
    """Give an operator a templated field for each option, and a line of its docstring."""
    inner: Any = kind.__init__

    def build(self: MemWalJobOperator, **kwargs: Any) -> None:
        given = {name_attribute(o): kwargs.pop(o.field, None) for o in options}
        inner(self, **kwargs)
        for name, value in given.items():
            setattr(self, name, value)

    # Airflow reads from it which default arguments a field takes, and what can be mapped.
    known = inspect.signature(inner).parameters.values()
    *before, rest = known
    fields = [inspect.Parameter(o.field, _KEYWORD, default=None) for o in options]
    vars(build)["__signature__"] = inspect.Signature([*before, *fields, rest])
    kind.__init__ = build  # type: ignore[method-assign]
    kind.template_fields = (*kind.template_fields, *map(name_attribute, options))
    lines = [f":param {o.field}: {_describe(o)} (templated)" for o in options]
    text = inspect.getdoc(kind) or ""
    kind.__doc__ = text + ("\n" if ":param" in text else "\n\n") + "\n".join(lines)


def _describe(declared: DeclaredOption) -> str:
    """Say what a field does; other options in the text are called as fields are."""
    text = describe_option(declared).rstrip(".")
    return re.sub("--([a-z][a-z-]*)", lambda found: found[1].replace("-", "_"), text)


def _check_value(declared: DeclaredOption, value: Any) -> str:
    """Return the value if it is safe for a command. Raises Usage."""
    text = check_name(declared.flag.removeprefix("--"), value)
    try:
        return text if declared.option.parse is None else declared.option.parse(text)
    except Usage as error:
        raise Usage(str(error).replace(repr(text), mask(text))) from None


def _name_flag(field: str) -> str:
    return "--dry-run" if field == "dry_run_only" else f"--{field.replace('_', '-')}"


def _give(flag: str, value: Any) -> list[str]:
    """Return option and value as one word, so that no value can be taken for another option."""
    return [] if value in _NOTHING else [f"{flag}={value}"]
