"""Backs up the tables that have a `backup` in memwal.toml, daily, and reads each copy again.

Until a table has one, this DAG runs only when it is started.
"""

from memwal_airflow.task_groups import build_job_dag

dag = build_job_dag("backup", __doc__)
