"""Runs chosen jobs on chosen tables, by hand: see the form."""

from airflow.sdk import dag as make_dag
from memwal_airflow.settings import read_dag_config
from memwal_airflow.task_groups import (
    add_backfill_tasks,
    build_backfill_params,
    build_dag_fields,
)

CONFIG = read_dag_config()


@make_dag(
    schedule=None,
    max_active_runs=4,
    params=build_backfill_params(CONFIG),
    render_template_as_native_obj=True,
    **build_dag_fields("backfill", CONFIG, __doc__),
)
def memwal_backfill() -> None:
    """Merges and index catch-ups of all chosen tables in one run; then the rest, table by table."""
    add_backfill_tasks(CONFIG)


dag = memwal_backfill()
