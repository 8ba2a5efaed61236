"""Files that land go into the table `orders` of memwal.toml, and start its merge.

Whoever writes the files says so by the asset `LANDED`, in a DAG of its own:

    @task(outlets=[LANDED])
    def export(): ...  # a file gets its name only once it is complete

This DAG ingests what is new in the folder, which the Airflow variable `orders_landing` names: a
path that all workers see, or `s3://bucket/orders/landing`. Its event starts `memwal_merge`, as it
could start a DAG of yours: `schedule=[build_asset(INGESTED, "orders")]`.
"""

from airflow.sdk import Asset, dag
from memwal_airflow.task_groups import memwal_ingest_group

LANDED = Asset("orders_landed")


# One run at a time. It takes all files that are there; events that come meanwhile start another.
@dag(
    schedule=[LANDED],
    catchup=False,
    max_active_runs=1,
    tags=["memwal", "memwal:ingest", "example"],
    doc_md=__doc__,
)
def orders_ingest() -> None:
    """The folder, into the table."""
    memwal_ingest_group("orders", "{{ var.value.orders_landing }}")


orders_ingest()
