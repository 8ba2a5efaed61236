"""Merges the tables that are due, in one mapped task each, and announces how far each one got.

It runs by the clock, and for the tables that an ingest has written to.
"""

from airflow.sdk import dag as make_dag
from memwal_airflow.forms import build_run_fields, build_run_params
from memwal_airflow.operators.plan import MemWalPlanOperator
from memwal_airflow.settings import read_dag_config
from memwal_airflow.task_groups import (
    build_dag_fields,
    build_schedule,
    build_task_defaults,
    choose_tables,
    map_job,
)

CONFIG = read_dag_config()


@make_dag(
    schedule=build_schedule("merge", CONFIG),
    max_active_runs=CONFIG.airflow.runs_in_flight_max,
    params=build_run_params(CONFIG, "merge", "those that are due"),
    **build_dag_fields("merge", CONFIG, __doc__),
)
def memwal_merge() -> None:
    """The tables that are due, then their merges."""
    due = MemWalPlanOperator(
        task_id="plan",
        tables=choose_tables(CONFIG),
        configured_only=True,
        due_only="{{ not params.tables }}",
        conn_id=CONFIG.airflow.conn_id,
        **build_task_defaults(CONFIG.airflow),
    )
    map_job("merge", due.output, CONFIG, **build_run_fields("merge"))


dag = memwal_merge()
