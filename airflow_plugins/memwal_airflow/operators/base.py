"""The operator that runs a memwal job; `jobs.py` beside it has a class for each.

With a Spark connection the job is submitted with spark-submit. Without one the memwal command of
the jobs' environment runs it, and starts Spark itself if the work is worth a JVM. A job can be
killed anywhere and goes on when it is run again, so a task that is tried again just does that.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from airflow.sdk import BaseHook, BaseOperator, timezone
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
)

from memwal.errors import Usage
from memwal.options import DeclaredOption, Option, list_options
from memwal_airflow.assets.events import add_events_of_job, find_ports
from memwal_airflow.assets.lineage import MERGING, Lineage, TellsLineage, take_outlines
from memwal_airflow.hooks.memwal import MemWalHook
from memwal_airflow.hooks.request import (
    build_option,
    build_words,
    describe_field,
    find_configured_tables,
    is_true,
    parse_tables,
)
from memwal_airflow.hooks.spark_connection import read_spark_target
from memwal_airflow.operators.outcomes import Verdict, assume_moved, summarize
from memwal_airflow.operators.page_links import MemWalPageLink
from memwal_airflow.operators.runs import JobOrder, run_job
from memwal_airflow.operators.task_runs import describe_task, name_run
from memwal_airflow.processes.process import JOB_GRACE_SECONDS, Runner
from memwal_airflow.settings import read_dag_config
from memwal_airflow.triggers.jobs import SETTLE_SECONDS, MemWalJobTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

SUMMARY_KEY = "memwal_summary"
# Fields that can't be named like their option, because Airflow's operators have such a method.
_ATTRIBUTES = {"execute": "garbage_execute", "dry_run": "dry_run_only"}
_END_SECONDS = SETTLE_SECONDS + JOB_GRACE_SECONDS + 1.0
_KEYWORD = inspect.Parameter.KEYWORD_ONLY


@dataclass(frozen=True, kw_only=True)
class CommonRequest:
    """What nearly every job may be asked."""

    engine: Annotated[str | None, Option(meaning="auto, spark or local.")] = None
    memory_max: Annotated[
        str | None,
        Option(
            meaning="How much memory the job's process, or each of Spark's executors, may take, "
            "such as `1GiB`; work that can't fit is refused."
        ),
    ] = None
    no_lease: Annotated[bool, Option(meaning="Work without the table's lease.")] = False
    allow_untested_lance: Annotated[
        bool, Option(meaning="Run on a pylance that memwal was not tested with.")
    ] = False
    dry_run: Annotated[bool, Option(meaning="Report what would be done, change nothing.")] = False


class MemWalRetry(AirflowException):
    """A failure worth another try: the store was away, the lease held too long, the job died."""


class MemWalJobOperator(TellsLineage, BaseOperator):
    """Runs one job over one or several tables.

    :param tables: a name in memwal.toml, a path, or an s3:// address; or a list of them (templated)
    :param configured_only: refuse a table that memwal.toml does not name, unless its `[airflow]
        any_address` is set; use it where whoever starts a run may name the tables
    :param arguments: more command-line options, passed on unchecked; don't let whoever starts a run
        choose them (templated)
    :param enabled: if false, skip the job (templated)
    :param conn_id: a `memwal` connection
    :param spark_conn_id: a Spark connection; the job then runs through spark-submit (templated)
    :param deferrable: run the job in the triggerer, without a worker slot. With Spark this is the
        driver; without, all of the work
    :param held_seconds_max: how long to try again, every `retry_delay`, while somebody else is at
        work on the table. This uses up no tries, and no worker slot between them
    :param skip_when_idle: whether a job with nothing to do ends as skipped rather than as success

    On success a summary of the report is the return value. It is also pushed under the key
    `memwal_summary`, even before a failure. Skipped: nothing to do. Rescheduled: lease held, lost
    race. Retried: lease held for too long, store away. Failed at once: guard, corruption, wrong
    request, partly failed. Killing the task ends the job, and so does `execution_timeout`.
    """

    job = ""
    # What the job may be asked: each option that it declares is a templated field, and so is each
    # common one. A DAG gives all its jobs the same fields: those that a job's command does not take
    # are left out.
    request: ClassVar[type] = CommonRequest
    common_options: ClassVar[Sequence[str]] = tuple(o.name for o in list_options(CommonRequest))
    template_fields: Sequence[str] = (
        *("tables", "arguments", "enabled", "spark_conn_id", "conn_id"),
    )
    operator_extra_links = (MemWalPageLink(),)
    ui_color = "#dbeafe"

    def __init__(
        self,
        *,
        tables: str | Sequence[str],
        configured_only: bool = False,
        arguments: Sequence[str] = (),
        enabled: bool | str = True,
        conn_id: str = MemWalHook.default_conn_name,
        spark_conn_id: str | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        held_seconds_max: float = 3600.0,
        skip_when_idle: bool = True,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("doc_md", describe(type(self)))
        super().__init__(**{**find_ports(self.job, tables), **kwargs})
        self._announces = self.job in (*MERGING, "ingest") and "outlets" not in kwargs
        self.tables = tables
        self.configured_only = configured_only
        self.arguments = list(arguments)
        self.enabled = enabled
        self.conn_id = conn_id
        self.spark_conn_id = spark_conn_id
        self.deferrable = deferrable
        self.held_seconds_max = held_seconds_max
        self.skip_when_idle = skip_when_idle
        self._runner = Runner()

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the job, here or in the triggerer."""
        if not is_true(self.enabled):
            raise AirflowSkipException(f"memwal {self.job}: not asked for")
        try:
            order = self._build_order(context)
            jobs = MemWalHook(self.conn_id).environment()
            target = None
            if order.spark_conn_id:
                target = read_spark_target(BaseHook.get_connection(order.spark_conn_id))
        except Usage as error:
            summary = {**summarize(None), "error": str(error)}
            context["ti"].xcom_push(key=SUMMARY_KEY, value=summary)
            raise AirflowFailException(str(error)) from None
        if self.deferrable:
            trigger = MemWalJobTrigger(**asdict(order))
            method = self.execute_complete.__name__
            self.defer(trigger=trigger, method_name=method, timeout=self.execution_timeout)
        event = run_job(order, jobs, target, self._runner, self.log.info)
        return self.execute_complete(context, event)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Do about the job's end what was decided."""
        decision, text = Verdict(event["verdict"]), f"memwal {self.job}: {event['text']}"
        found, instance = dict(event["summary"]), context["ti"]
        outlines = take_outlines(found)
        if instance.try_number > 1:
            assume_moved(found)
        if decision is not Verdict.SUCCESS:
            found["error"] = found.get("error") or event["text"]
        # Before any exception is raised: the progress of a failed task is announced as well.
        self.lineage = Lineage(run_id=name_run(instance), summary=found, outlines=outlines)
        instance.xcom_push(key=SUMMARY_KEY, value=found)
        if decision is Verdict.FAIL:
            raise AirflowFailException(text)
        if decision is Verdict.HELD:
            self._look_again(context, text)
        if decision in (Verdict.RETRY, Verdict.HELD):
            raise MemWalRetry(text)
        self.log.info(text)
        if (
            decision is Verdict.SKIP
            and self.skip_when_idle
            and not any(map(_moved, found["tables"]))
        ):
            raise AirflowSkipException(text)
        if self._announces:
            add_events_of_job(self.job, found, context)
        return found

    def _look_again(self, context: Context, text: str) -> None:
        """Have the same try run again later, unless the lease has been held for too long."""
        first, now = context["ti"].get_first_reschedule_date(context), timezone.utcnow()
        if (now - (first or now)).total_seconds() < self.held_seconds_max:
            delay = max(self.retry_delay, timedelta(seconds=SETTLE_SECONDS))
            self.log.info("%s; looking again in %s, as the same try", text, delay)
            raise AirflowRescheduleException(now + delay)

    def on_kill(self) -> None:
        """End the job when Airflow kills the task; the job then gives up its lease."""
        self._runner.close()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "job" in vars(cls):
            _add_fields(cls, cls._list_declared())

    @classmethod
    def _list_declared(cls) -> list[DeclaredOption]:
        return list(dict.fromkeys([*list_options(cls.request), *list_options(CommonRequest)]))

    def list_options(self) -> list[str]:
        """The options that the fields stand for, from rendered fields. Raises Usage."""
        common = {o.name for o in list_options(CommonRequest)} - {*self.common_options}
        asked = [o for o in self._list_declared() if o.name not in common]
        return [word for o in asked for word in build_option(o, getattr(self, name_attribute(o)))]

    def check_run(self, context: Context) -> None:
        """Raise Usage for a run that must not do this job."""

    def list_sources(self) -> list[str]:
        """The words after the tables on the command line, from rendered fields."""
        return []

    def _build_order(self, context: Context) -> JobOrder:
        self.check_run(context)
        tables = parse_tables(self.tables)
        if self.configured_only:
            tables = find_configured_tables(tables, read_dag_config())
        options = [*self.list_options(), *map(str, self.arguments)]
        return JobOrder(
            job=self.job,
            words=build_words(options, tables, self.list_sources()),
            conn_id=self.conn_id,
            spark_conn_id=self.spark_conn_id if "engine" in self.common_options else None,
            run_id=name_run(context["ti"]),
            task=describe_task(context["ti"]),
            seconds_max=self._find_seconds_max(),
        )

    def _find_seconds_max(self) -> float | None:
        """When to end the job, early enough for its summary to be told before Airflow ends both."""
        limit = self.execution_timeout.total_seconds() if self.execution_timeout else 0.0
        return limit - _END_SECONDS if limit > 2 * _END_SECONDS else None


def _moved(table: Mapping[str, Any]) -> bool:
    """Whether any job changed a table of a summary."""
    return any(part["progress"] for part in (table, *table.get("jobs", ())))


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
    lines = [f":param {o.field}: {describe_field(o)} (templated)" for o in options]
    text = inspect.getdoc(kind) or ""
    kind.__doc__ = text + ("\n" if ":param" in text else "\n\n") + "\n".join(lines)
