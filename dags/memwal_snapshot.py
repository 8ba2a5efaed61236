"""Refreshes the shard snapshots of the tables that were merged, each once; daily all."""

from memwal_airflow.task_groups import build_job_dag

dag = build_job_dag("snapshot", __doc__)
