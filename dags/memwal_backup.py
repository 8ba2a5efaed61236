"""Backs up the tables that have a `backup` in memwal.toml, daily, and reads each copy again.

Until a table has one, this DAG runs only when it is started.
"""

from memwal_airflow.settings import read_dag_config
from memwal_airflow.task_groups import build_cron_schedule, build_job_dag

CONFIG = read_dag_config()
SCHEDULE = (
    build_cron_schedule(CONFIG.airflow.backup_schedule)
    if any(table.backup for table in CONFIG.tables.values())
    else None
)

dag = build_job_dag("backup", CONFIG, __doc__, schedule=SCHEDULE)
