"""Refreshes the shard snapshots of the tables that were merged, each once; daily all."""

from memwal_airflow.assets.events import MERGED
from memwal_airflow.settings import read_dag_config
from memwal_airflow.task_groups import build_event_schedule, build_job_dag

CONFIG = read_dag_config()
SCHEDULE = build_event_schedule(MERGED, CONFIG, or_cron=CONFIG.airflow.snapshot_schedule)

dag = build_job_dag(
    "snapshot",
    CONFIG,
    __doc__,
    schedule=SCHEDULE,
    runs_max=CONFIG.airflow.runs_in_flight_max,
)
