"""Operators, a class a job, and what they make of a job's exit code, report and earlier tries.

DAGs are built of them in `task_groups.py`; nothing here builds one.
"""
