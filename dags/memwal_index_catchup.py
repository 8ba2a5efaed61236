"""Extends indexes over the rows that were merged: tables of merge events, each once; daily all."""

from memwal_airflow.assets.events import MERGED
from memwal_airflow.settings import read_dag_config
from memwal_airflow.task_groups import build_event_schedule, build_job_dag

CONFIG = read_dag_config()
SCHEDULE = build_event_schedule(MERGED, CONFIG, or_cron=CONFIG.airflow.index_catchup_schedule)

dag = build_job_dag(
    "index-catchup",
    CONFIG,
    __doc__,
    schedule=SCHEDULE,
    runs_max=CONFIG.airflow.runs_in_flight_max,
)
