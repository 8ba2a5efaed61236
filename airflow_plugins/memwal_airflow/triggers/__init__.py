"""The triggers that wait in Airflow's triggerer."""
