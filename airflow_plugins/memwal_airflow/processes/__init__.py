"""Processes that run memwal: bounded ones, and jobs that outlive the task that started them.

Nothing here knows what a job is for. `supervise.py` runs as a script and imports nothing of ours.
"""
