"""Airflow's side of memwal: operators, a sensor, a connection type and a page.

Nothing here imports Lance or pyspark. Jobs run as processes, in an environment of their own.
"""

__version__ = "0.1.0"
