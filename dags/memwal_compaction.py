"""Rewrites the small fragments that merging leaves, daily, on every table."""

from airflow.sdk import dag
from memwal_airflow.forms import asked_tables, run_fields, run_params
from memwal_airflow.settings import dag_config
from memwal_airflow.task_groups import cron_schedule, mapped_job

CONFIG = dag_config()


@dag(
    schedule=cron_schedule(CONFIG.airflow.compaction_schedule),
    catchup=False,
    max_active_runs=1,
    params=run_params(CONFIG, "compaction"),
    tags=["memwal"],
    doc_md=__doc__,
)
def memwal_compaction():
    """One task a table."""
    mapped_job("compaction", asked_tables(), CONFIG, **run_fields("compaction"))


memwal_compaction()
