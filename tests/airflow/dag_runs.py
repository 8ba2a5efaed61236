"""Runs DAGs in the tests' own process, and tells what became of their tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG

from tests.airflow.airflow_server import InProcessAirflow

# In the worker itself, and in the triggerer.
EACH_PLACE = pytest.mark.parametrize(
    "deferrable", [pytest.param(False, marks=pytest.mark.nightly), True]
)


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A run that is over."""

    run: Any

    @property
    def state(self) -> str:
        return str(self.run.state.value)

    @property
    def states(self) -> dict[tuple[str, int], str | None]:
        """(task_id, map_index) -> state."""
        return {(ti.task_id, ti.map_index): ti.state for ti in self.run.get_task_instances()}

    def task(self, task_id: str, map_index: int = -1) -> Any:
        return self.run.get_task_instance(task_id, map_index=map_index)

    @property
    def tried(self) -> tuple[str, int]:
        """How the task `job` ended, and after how many tries."""
        return self.states[("job", -1)] or "", int(self.task("job").try_number)

    def xcom(self, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        found = self.task(task_id, map_index)
        return found.xcom_pull(task_ids=task_id, key=key, map_indexes=map_index)


def run_shipped(home: InProcessAirflow, dag_id: str, conf: Mapping[str, Any] | None = None) -> Ran:
    """Run one of the DAGs in dags/, as the configuration file stands now."""
    dag = home.load_dag(dag_id)
    home.register(dag)
    return Ran(run=dag.test(run_conf=dict(conf or {})))


def run_tasks(home: InProcessAirflow, build: Callable[[], Any], dag_id: str = "own") -> Ran:
    """Run a DAG of the test's own: `build` makes its tasks."""
    with DAG(dag_id, schedule=None) as dag:
        build()
    home.register(dag)
    return Ran(run=dag.test())


def run_one(home: InProcessAirflow, kind: type[Any], **fields: Any) -> Ran:
    """One task called `job`, without a worker's pause between tries."""
    fields = {"retry_delay": timedelta(0), **fields}
    return run_tasks(home, lambda: kind(task_id="job", **fields))


def asset_events(*, of_tables: bool = False) -> list[tuple[str, dict[str, Any]]]:
    """(asset name, extra) of the steps' assets, or of all others; oldest first."""
    from airflow.models.asset import AssetEvent
    from airflow.settings import Session
    from sqlalchemy import select

    found = Session().scalars(select(AssetEvent).order_by(AssetEvent.id)).all()
    return [
        (event.asset.name, event.extra)
        for event in found
        if of_tables != event.asset.uri.startswith("memwal://")
    ]
