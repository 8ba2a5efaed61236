"""Brings indexes over what was merged: the tables of the merge events, each once; daily all."""

from airflow.sdk import dag
from memwal_airflow.asset_events import MERGED
from memwal_airflow.forms import asked_tables, run_fields, run_params
from memwal_airflow.settings import dag_config
from memwal_airflow.task_groups import event_schedule, mapped_job

CONFIG = dag_config()


@dag(
    schedule=event_schedule(MERGED, CONFIG, or_cron=CONFIG.airflow.index_catchup_schedule),
    catchup=False,
    max_active_runs=CONFIG.airflow.runs_in_flight_max,
    params=run_params(CONFIG, "index-catchup"),
    tags=["memwal"],
    doc_md=__doc__,
)
def memwal_index_catchup():
    """The tables of the events, then their indexes."""
    mapped_job("index-catchup", asked_tables(), CONFIG, **run_fields("index-catchup"))


memwal_index_catchup()
