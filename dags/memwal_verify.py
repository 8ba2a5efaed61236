"""Checks the invariants on every table, daily, and changes nothing.

The task of a table that breaks one fails, without another try, and its error names the table and
the invariant; the other tables are checked all the same. Nothing follows such a run: it is there to
be seen, and to call whoever Airflow calls for a failed task.
"""

from memwal_airflow.task_groups import build_job_dag

dag = build_job_dag("verify", __doc__)
