"""Collects garbage where indexes caught up, and daily everywhere. Lists it only, unless
`garbage_execute = true` stands in `[airflow]`.
"""

from airflow.sdk import dag
from memwal_airflow.asset_events import INDEXED
from memwal_airflow.forms import build_run_fields, build_run_params, choose_tables
from memwal_airflow.settings import read_dag_config
from memwal_airflow.task_groups import build_event_schedule, map_job

CONFIG = read_dag_config()


@dag(
    schedule=build_event_schedule(INDEXED, CONFIG, or_cron=CONFIG.airflow.garbage_schedule),
    catchup=False,
    max_active_runs=1,
    params=build_run_params(CONFIG, "garbage"),
    tags=["memwal"],
    doc_md=__doc__,
)
def memwal_garbage():
    """The tables of the events, or all, then their garbage."""
    map_job("garbage", choose_tables(), CONFIG, **build_run_fields("garbage"))


memwal_garbage()
