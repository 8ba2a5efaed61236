"""Rewrites the small fragments that merging leaves, daily, on every table."""

from airflow.sdk import dag
from memwal_airflow.forms import build_run_fields, build_run_params, choose_tables
from memwal_airflow.settings import read_dag_config
from memwal_airflow.task_groups import build_cron_schedule, map_job

CONFIG = read_dag_config()


@dag(
    schedule=build_cron_schedule(CONFIG.airflow.compaction_schedule),
    catchup=False,
    max_active_runs=1,
    params=build_run_params(CONFIG, "compaction"),
    tags=["memwal"],
    doc_md=__doc__,
)
def memwal_compaction():
    """One task for each table."""
    map_job("compaction", choose_tables(), CONFIG, **build_run_fields("compaction"))


memwal_compaction()
