"""What merges change in the table `orders` of memwal.toml goes on into a database of yours.

The event of the table says which versions a merge made of it. A run reads from where the copy is
to the newest of its events. So nothing is missed where an event was lost, and several that started
one run are read at once. A task that is cleared finds that the copy has its versions, and says so.

The copy keeps how far it is in the transaction that changes it, so it is right if the task dies
anywhere. No run may begin before that: of a row that came and went in between there is no change,
and the copy would keep it. The cursor only tells garbage collection which versions are needed.

The table needs stable row ids. The Airflow variable `memwal_python` is a Python that has memwal,
`orders_copy` a file; with another database, only `copy_changes` is different.
"""

from typing import Any

from airflow.sdk import dag, task
from memwal_airflow.assets.events import build_table_asset, find_changed_range
from memwal_airflow.settings import read_settings


@task
def find_range(triggering_asset_events: Any = None) -> tuple[int | None, int | None]:
    """What the events are about; nothing for a run that was started by hand."""
    return find_changed_range(triggering_asset_events)


@task.external_python(python="{{ var.value.memwal_python }}", expect_airflow=False)
def copy_changes(found: Any, config: str | None, database: str) -> dict[str, int]:
    """Bring the copy up to the newest version. Runs in the environment that has memwal."""
    import json
    import sqlite3

    import memwal

    _, until = found
    table = memwal.open_table("orders", config=config)
    copy = sqlite3.connect(database)
    with copy:  # one transaction
        copy.execute("CREATE TABLE IF NOT EXISTS orders (key PRIMARY KEY, row)")
        copy.execute("CREATE TABLE IF NOT EXISTS done (version)")
        done = copy.execute("SELECT coalesce(max(version), 0) FROM done").fetchone()[0]
        if until is not None and until <= done:
            print(f"nothing to read: the copy has version {done}, and the events end at {until}")
            table.commit_changes("orders_copy", done)  # a try before may have died before it
            return {"since": done, "until": done, "rows": 0}
        changes = table.changes(since=done, until=until)
        end = int(changes.schema.metadata[b"memwal.until"])
        key = changes.schema.names[3]  # after _change, _version and _time
        rows = 0
        for batch in changes:
            for row in batch.to_pylist():
                rows += 1
                if row["_change"] == "delete":
                    copy.execute("DELETE FROM orders WHERE key = ?", [row[key]])
                else:
                    values = [row[key], json.dumps(row, default=str)]
                    copy.execute("INSERT OR REPLACE INTO orders VALUES (?, ?)", values)
        copy.execute("DELETE FROM done")
        copy.execute("INSERT INTO done VALUES (?)", [end])
    table.commit_changes("orders_copy", end)
    return {"since": done, "until": end, "rows": rows}


# One run at a time. What is merged meanwhile starts another.
@dag(
    schedule=[build_table_asset("orders")],
    catchup=False,
    max_active_runs=1,
    tags=["memwal", "example"],
    doc_md=__doc__,
)
def orders_changes() -> None:
    """The table, into the copy."""
    copy_changes(find_range(), read_settings().config_file, "{{ var.value.orders_copy }}")


orders_changes()
