"""Tables as Airflow assets and OpenLineage datasets: their names and events.

Nothing here opens a table.
"""
