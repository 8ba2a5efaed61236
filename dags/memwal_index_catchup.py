"""Extends indexes over the rows that were merged: tables of merge events, each once; daily all."""

from airflow.sdk import dag
from memwal_airflow.asset_events import MERGED
from memwal_airflow.forms import build_run_fields, build_run_params, choose_tables
from memwal_airflow.settings import read_dag_config
from memwal_airflow.task_groups import build_event_schedule, map_job

CONFIG = read_dag_config()


@dag(
    schedule=build_event_schedule(MERGED, CONFIG, or_cron=CONFIG.airflow.index_catchup_schedule),
    catchup=False,
    max_active_runs=CONFIG.airflow.runs_in_flight_max,
    params=build_run_params(CONFIG, "index-catchup"),
    tags=["memwal"],
    doc_md=__doc__,
)
def memwal_index_catchup():
    """The tables of the events, then their indexes."""
    map_job("index-catchup", choose_tables(), CONFIG, **build_run_fields("index-catchup"))


memwal_index_catchup()
