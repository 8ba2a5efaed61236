"""Merges the tables that are due, one mapped task a table, and tells how far each one got."""

from airflow.sdk import dag
from memwal_airflow.forms import asked_tables, run_fields, run_params
from memwal_airflow.plan_operator import MemWalPlanOperator
from memwal_airflow.settings import dag_config
from memwal_airflow.task_groups import cron_schedule, mapped_job, task_defaults

CONFIG = dag_config()


@dag(
    schedule=cron_schedule(CONFIG.airflow.merge_schedule),
    catchup=False,
    max_active_runs=CONFIG.airflow.runs_in_flight_max,
    params=run_params(CONFIG, "merge", "those that are due"),
    tags=["memwal"],
    doc_md=__doc__,
)
def memwal_merge():
    """The tables that are due, then their merges."""
    due = MemWalPlanOperator(
        task_id="plan",
        tables=asked_tables(),
        configured_only=True,
        due_only="{{ not params.tables }}",
        conn_id=CONFIG.airflow.conn_id,
        **task_defaults(CONFIG.airflow),
    )
    mapped_job("merge", due.output, CONFIG, **run_fields("merge"))


memwal_merge()
