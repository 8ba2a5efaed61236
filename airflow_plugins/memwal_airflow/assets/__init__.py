"""Tables as Airflow's assets and OpenLineage's datasets: their names, and their events.

Nothing here opens a table.
"""
