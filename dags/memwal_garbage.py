"""Collects garbage where indexes caught up, and daily everywhere. Deletes it from tables
that have a `retention` in memwal.toml; of the others it is listed.
"""

from memwal_airflow.assets.events import INDEXED
from memwal_airflow.settings import read_dag_config
from memwal_airflow.task_groups import build_event_schedule, build_job_dag

CONFIG = read_dag_config()
SCHEDULE = build_event_schedule(INDEXED, CONFIG, or_cron=CONFIG.airflow.garbage_schedule)

dag = build_job_dag(
    "garbage",
    CONFIG,
    __doc__,
    schedule=SCHEDULE,
    # One that waits for a held lease must not keep the others' garbage.
    runs_max=CONFIG.airflow.runs_in_flight_max,
)
