"""Rewrites the small fragments that merging leaves, daily, on every table."""

from memwal_airflow.task_groups import build_job_dag

dag = build_job_dag("compaction", __doc__)
