"""Refreshes the shard snapshots of the tables that were merged, each once; daily all."""

from airflow.sdk import dag
from memwal_airflow.asset_events import MERGED
from memwal_airflow.forms import asked_tables, run_fields, run_params
from memwal_airflow.settings import dag_config
from memwal_airflow.task_groups import event_schedule, mapped_job

CONFIG = dag_config()


@dag(
    schedule=event_schedule(MERGED, CONFIG, or_cron=CONFIG.airflow.snapshot_schedule),
    catchup=False,
    max_active_runs=CONFIG.airflow.runs_in_flight_max,
    params=run_params(CONFIG, "snapshot"),
    tags=["memwal"],
    doc_md=__doc__,
)
def memwal_snapshot():
    """The tables of the events, then their snapshots."""
    mapped_job("snapshot", asked_tables(), CONFIG, **run_fields("snapshot"))


memwal_snapshot()
