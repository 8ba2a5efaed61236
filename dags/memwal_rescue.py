"""Flushes what a writer that has gone left in the WAL, by hand: see the form.

It claims the shard: a writer that is alive after all is fenced, and has to be opened again. Nothing
that was acknowledged is lost either way. A dry run, which is what the form begins with, tells what
would be claimed; claiming takes no dry run, and `yes`. `memwal_merge` takes it from there.
"""

from memwal_airflow.task_groups import build_job_dag

dag = build_job_dag("rescue", __doc__)
