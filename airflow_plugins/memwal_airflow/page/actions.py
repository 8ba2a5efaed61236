"""Starts the backfill DAG for users who may do so."""

from __future__ import annotations

import json
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from memwal_airflow.page.answers import explain

DAG_ID = "memwal_backfill"
BODY_BYTES_MAX = 256 << 10
FAILED_MAX = 10
TABLES_SHOWN_MAX = 1_000
Job = Literal["merge", "index-catchup", "snapshot", "garbage", "compaction"]
_MERGE, _BACKFILL = ("merge",), ("merge", "index-catchup")
# Which jobs make use of an option.
NEEDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("shards", "until_generation"), _MERGE),
    **dict.fromkeys(("generations_per_commit_max", "bytes_per_commit_max"), _MERGE),
    **dict.fromkeys(("concurrency", "deadline", "engine"), _BACKFILL),
    "execute": ("garbage",),
}
_STRICT = ConfigDict(extra="forbid", frozen=True, strict=True)
Body = TypeVar("Body", bound=BaseModel)


class Backfill(BaseModel):
    """The backfill DAG's parameters, under their names; an option needs a job that uses it."""

    model_config = _STRICT

    tables: list[str] = Field(min_length=1, max_length=1000)
    shards: list[str] = Field(default_factory=list, max_length=1000)
    jobs: list[Job] = Field(min_length=1, max_length=5)
    dry_run: bool = True
    generations_per_commit_max: int | None = Field(default=None, ge=1)
    bytes_per_commit_max: int | None = Field(default=None, ge=1)
    until_generation: int | None = Field(default=None, ge=1)
    concurrency: int | None = Field(default=None, ge=1, le=256)
    deadline: str | None = Field(default=None, max_length=20)
    engine: Literal["auto", "spark", "local"] | None = None
    execute: bool = False

    @model_validator(mode="after")
    def _has_an_effect(self) -> Self:
        for field, jobs in NEEDS.items():
            if getattr(self, field) and not set(jobs) & set(self.jobs):
                raise ValueError(f"{field} needs {' or '.join(jobs)}")
        if self.shards and len(self.tables) > 1:
            raise ValueError("shards needs a single table")
        return self


class Refresh(BaseModel):
    """Which table to look at again; None means all."""

    model_config = _STRICT

    table: str | None = None


class Rejected(Exception):
    """The action is not possible; `status` is the HTTP status, the text says what to do."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def parse(model: type[Body], body: bytes) -> Body:
    """Read a request's body. Raises Rejected (400)."""
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise Rejected(400, explain(error)) from None


def find_obstacle() -> Rejected | None:
    """Return why the backfill DAG can't be started now; None if it can. Queries the database."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    with create_session() as session:
        model = session.get(DagModel, DAG_ID)
        if model is None or model.is_stale:
            return Rejected(
                404,
                f"there is no DAG {DAG_ID} in this Airflow; import memwal_airflow.dags.{DAG_ID} "
                "in a file of its DAGs folder",
            )
        if model.has_import_errors:
            return Rejected(409, f"the DAG {DAG_ID} has import errors")
        if model.is_paused:
            return Rejected(409, f"the DAG {DAG_ID} is paused; unpause it to start backfills")
    return None


def trigger(order: Backfill, user: Any) -> str:
    """Start the DAG in the user's name, as Airflow's own API does, and return the run's id.

    Raises Rejected: no such DAG (404), paused or broken (409), parameters refused (400).
    """
    from airflow.api.common.trigger_dag import trigger_dag
    from airflow.exceptions import DagNotFound, DagRunAlreadyExists
    from airflow.sdk.exceptions import ParamValidationError
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunTriggeredByType

    if obstacle := find_obstacle():
        raise obstacle
    try:
        with create_session() as session:
            run = trigger_dag(
                dag_id=DAG_ID,
                triggered_by=DagRunTriggeredByType.UI,
                triggering_user_name=user.get_name(),
                conf=order.model_dump(mode="json"),
                session=session,
            )
            if run is None:
                raise Rejected(409, f"the DAG {DAG_ID} could not be started")
            run_id = str(run.run_id)
            session.add(_make_audit_entry(order, user, run_id))
    except DagNotFound as error:
        raise Rejected(404, str(error)) from error
    except DagRunAlreadyExists as error:
        raise Rejected(409, str(error)) from error
    except (ParamValidationError, ValueError) as error:
        raise Rejected(400, str(error)) from error
    return run_id


def read_run(run_id: str) -> dict[str, Any]:
    """Return how a backfill run stands. Queries the database. Raises Rejected (404)."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from airflow.utils.state import State, TaskInstanceState
    from sqlalchemy import select

    from memwal_airflow.operators.base import SUMMARY_KEY

    with create_session() as session:
        ours = (DagRun.dag_id == DAG_ID, DagRun.run_id == run_id)
        run = session.scalar(select(DagRun).where(*ours))
        if run is None:
            raise Rejected(404, "there is no such run any more")
        tasks = select(TaskInstance).where(
            TaskInstance.dag_id == DAG_ID,
            TaskInstance.run_id == run_id,
            TaskInstance.state == TaskInstanceState.FAILED,
        )
        failed = sorted({task.task_id for task in session.scalars(tasks)})
        found = session.scalar(
            XComModel.get_many(
                key=SUMMARY_KEY, task_ids="backfill", dag_ids=DAG_ID, run_id=run_id
            ).limit(1)
        )
        summary = XComModel.deserialize_value(found) if found else None
        tables = summary.get("tables", []) if isinstance(summary, dict) else []
        return {
            "run_id": run_id,
            "state": str(run.state),
            "ended": run.state in State.finished_dr_states,
            "failed": failed[:FAILED_MAX],
            "tables": [
                {key: table.get(key) for key in ("table", "outcome", "error")}
                for table in tables[:TABLES_SHOWN_MAX]
            ],
        }


def _make_audit_entry(order: Backfill, user: Any, run_id: str) -> Any:
    """Make an entry for Airflow's audit log, like those that its own API writes."""
    from airflow.models.log import Log

    return Log(
        event="trigger_dag_run",
        owner=user.get_name(),
        owner_display_name=user.get_name(),
        dag_id=DAG_ID,
        run_id=run_id,
        extra=json.dumps({**order.model_dump(mode="json"), "source": "MemWAL page"}),
    )
