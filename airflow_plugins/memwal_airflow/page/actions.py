"""Starts the backfill DAG for a user who may."""

from __future__ import annotations

import json
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from memwal_airflow.page.answers import explain

DAG_ID = "memwal_backfill"
BODY_BYTES_MAX = 256 << 10
Job = Literal["merge", "index-catchup", "snapshot", "garbage", "compaction"]
_STRICT = ConfigDict(extra="forbid", frozen=True, strict=True)
Body = TypeVar("Body", bound=BaseModel)


class Backfill(BaseModel):
    """The parameters of the backfill DAG, under the same names."""

    model_config = _STRICT

    tables: list[str] = Field(min_length=1, max_length=100)
    shards: list[str] = Field(default_factory=list, max_length=1000)
    jobs: list[Job] = Field(min_length=1, max_length=5)
    dry_run: bool = True
    generations_per_commit_max: int | None = Field(default=None, ge=1)
    bytes_per_commit_max: int | None = Field(default=None, ge=1)
    until_generation: int | None = Field(default=None, ge=1)
    execute: bool = False


class Refresh(BaseModel):
    """Which table to look at again; None: all."""

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
    """Why the backfill DAG can't be started now; None if it can. Asks the database."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    with create_session() as session:
        model = session.get(DagModel, DAG_ID)
        if model is None or model.is_stale:
            return Rejected(
                404, f"there is no DAG {DAG_ID} in this Airflow; put dags/ into its DAGs"
            )
        if model.has_import_errors:
            return Rejected(409, f"the DAG {DAG_ID} has import errors")
        if model.is_paused:
            return Rejected(409, f"the DAG {DAG_ID} is paused; unpause it to start backfills")
    return None


def trigger(order: Backfill, user: Any) -> str:
    """Start the DAG in the user's name, as Airflow's own API does; the run's id.

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


def _make_audit_entry(order: Backfill, user: Any, run_id: str) -> Any:
    """A line for Airflow's audit log, beside those that its own API writes."""
    from airflow.models.log import Log

    return Log(
        event="trigger_dag_run",
        owner=user.get_name(),
        owner_display_name=user.get_name(),
        dag_id=DAG_ID,
        run_id=run_id,
        extra=json.dumps({**order.model_dump(mode="json"), "source": "MemWAL page"}),
    )
