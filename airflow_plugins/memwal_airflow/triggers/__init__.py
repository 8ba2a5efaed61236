"""What waits in Airflow's triggerer.

Nothing here blocks, or starts a job.
"""
