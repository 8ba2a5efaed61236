"""Rewrites the small fragments that merging leaves, daily, on every table."""

from memwal_airflow.settings import read_dag_config
from memwal_airflow.task_groups import build_cron_schedule, build_job_dag

CONFIG = read_dag_config()
SCHEDULE = build_cron_schedule(CONFIG.airflow.compaction_schedule)

dag = build_job_dag("compaction", CONFIG, __doc__, schedule=SCHEDULE)
