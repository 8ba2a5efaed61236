"""Extends indexes over the rows that were merged: tables of merge events, each once; daily all."""

from memwal_airflow.task_groups import build_job_dag

dag = build_job_dag("index-catchup", __doc__)
