"""Refreshes the shard snapshots of the tables that were merged, each once; daily all."""

from airflow.sdk import dag
from memwal_airflow.asset_events import MERGED
from memwal_airflow.settings import dag_config
from memwal_airflow.task_groups import event_schedule, mapped_job, tables_of_events

CONFIG = dag_config()


@dag(
    schedule=event_schedule(MERGED, CONFIG, or_cron=CONFIG.airflow.snapshot_schedule),
    catchup=False,
    max_active_runs=CONFIG.airflow.runs_in_flight_max,
    tags=["memwal"],
    doc_md=__doc__,
)
def memwal_snapshot():
    """The tables of the events, then their snapshots."""
    mapped_job("snapshot", tables_of_events(list(CONFIG.tables)), CONFIG)


memwal_snapshot()
