"""Collects garbage where indexes caught up, and daily everywhere. Deletes it from tables
that have a `retention` in memwal.toml; of the others it is listed.
"""

from memwal_airflow.task_groups import build_job_dag

dag = build_job_dag("garbage", __doc__)
