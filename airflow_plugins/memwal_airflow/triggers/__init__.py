"""The triggers that wait in Airflow's triggerer.

They neither block nor start jobs.
"""
