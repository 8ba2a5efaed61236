"""Processes that run memwal: bounded ones, and jobs that outlive the task that started them.

Nothing here depends on what a job does. `supervise.py` runs as a script and imports none of our
modules.
"""
