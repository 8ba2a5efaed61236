"""Refreshes the shard snapshots of the tables that were merged, each once; daily all."""

from airflow.sdk import dag
from memwal_airflow.asset_events import MERGED
from memwal_airflow.forms import build_run_fields, build_run_params, choose_tables
from memwal_airflow.settings import read_dag_config
from memwal_airflow.task_groups import build_event_schedule, map_job

CONFIG = read_dag_config()


@dag(
    schedule=build_event_schedule(MERGED, CONFIG, or_cron=CONFIG.airflow.snapshot_schedule),
    catchup=False,
    max_active_runs=CONFIG.airflow.runs_in_flight_max,
    params=build_run_params(CONFIG, "snapshot"),
    tags=["memwal"],
    doc_md=__doc__,
)
def memwal_snapshot():
    """The tables of the events, then their snapshots."""
    map_job("snapshot", choose_tables(), CONFIG, **build_run_fields("snapshot"))


memwal_snapshot()
