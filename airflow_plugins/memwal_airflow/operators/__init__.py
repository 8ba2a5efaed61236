"""Operators, one class for each job, and how they judge a job's exit code, report and tries.

`task_groups.py` builds DAGs of them; nothing here does.
"""
