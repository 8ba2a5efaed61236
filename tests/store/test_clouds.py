"""Tables on each kind of store, from the first row to the last deleted object; and what Azure and
Google's service have of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from memwal import errors
from memwal.cli.app import app
from memwal.read.output import check_file
from memwal.store.objects.base import StoreLimits
from memwal.store.objects.opening import open_objects, same_place
from memwal.testing import ManualClock
from tests.support import garbage_runs as runs
from tests.support.azurite import Azurite
from tests.support.builders import Put, Table
from tests.support.scripted_server import (
    SECRET,
    SLOW_DOWN,
    Reply,
    ScriptedServer,
    fault,
    listing,
    part,
)
from tests.support.scripted_server import scripted as scripted
from tests.support.scripted_server import server as server
from tests.support.stores import ON_AZURE, ON_GCS, ON_S3, make_address

COLLECT = ("--execute", "--wal", "--retention", "0s", "--grace", "0s", "--allow-short-retention")


# ---- tables


def memwal(table: Table, *words: str) -> dict[str, object]:
    """Run a command that has to succeed; its report."""
    command, *rest = words
    options = [f"--storage-option={k}={v}" for k, v in table.options.items()]
    done = CliRunner().invoke(app, [command, table.uri, *rest, *options, "--json"])
    assert done.exit_code == 0, done.stdout
    report: dict[str, object] = json.loads(done.stdout)
    return report


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", [ON_S3, ON_AZURE, ON_GCS])
def test_a_table_lives_on_it(request: pytest.FixtureRequest, scheme: str, tmp_path: Path) -> None:
    place = make_address(request, scheme, "a/table")
    table = runs.laid_out(place.uri, options=place.storage_options, generations=2)
    table.flush(table.shards[0], Put([700], 7))
    rows = pa.Table.from_pylist([table.row(800, 8)], schema=table.dataset.schema)
    pq.write_table(rows, tmp_path / "rows.parquet")

    assert memwal(table, "doctor")["outcome"] == "done"
    ingested = memwal(table, "ingest", str(tmp_path / "rows.parquet"), "--shard", table.shards[0])
    assert ingested["outcome"] == "done"
    first = memwal(table, "maintain", *COLLECT)
    assert first["outcome"] == "done"
    memwal(table, "maintain", *COLLECT)
    assert memwal(table, "garbage", *COLLECT)["outcome"] in ("done", "nothing_to_do")
    assert memwal(table, "verify")["outcome"] == "done"
    found = memwal(table, "read", "--columns", "n")
    rows_read = found["tables"][0]["rows"]  # type: ignore[index]
    assert {row["n"] for row in rows_read} >= {7, 8}, found
    left = [file.path for file in table.stores.objects.list("_mem_wal")]
    assert not any("_gen_" in path for path in left), left
    assert memwal(table, "status")["tables"][0]["reclaimable"]["generations"] == 0  # type: ignore[index]


@pytest.mark.nightly
def test_an_abfss_address_leads_to_the_same_table(request: pytest.FixtureRequest) -> None:
    place = make_address(request, "az", "a/table")
    place.objects().put("x", b"1")
    container = place.uri.split("/")[2]
    other = f"abfss://{container}@devstoreaccount1.dfs.core.windows.net/a/table"
    options = place.storage_options
    assert open_objects(other, options, ManualClock()).get("x") == b"1"
    assert same_place(other, options) == same_place(place.uri, options)
    assert same_place(place.uri, {**options, "account_name": "b"}) != same_place(place.uri, options)


@pytest.mark.nightly
def test_what_is_wrong_on_azure_is_told_as_what_it_is(azurite: Azurite) -> None:
    options, container = azurite.storage_options, azurite.make_container()

    def ask(uri: str, **other: str) -> Callable[[], object]:
        return lambda: open_objects(uri, {**options, **other}, ManualClock()).get("a")

    for call, kind, says in (
        (ask("az://no-such-container/t"), errors.Usage, "no bucket or container 'no-such-cont"),
        (ask(f"az://{container}/t", account_key=SECRET), errors.BadCredentials, "HTTP 403 Auth"),
        (ask(f"az://{container}/t", account_key="not base64"), errors.Usage, "Access Key"),
        (ask(f"az://{container}/t", allow_http="false"), errors.Usage, "allow_http=true"),
        (ask(f"az://{container}/t"), errors.Missing, "does not exist"),
    ):
        with pytest.raises(kind, match=says) as raised:
            call()
        assert type(raised.value) is kind
        assert not any(v in str(raised.value) for v in (SECRET, "not base64", "http://127"))
    with pytest.raises(errors.Usage, match="account_name is missing"):
        open_objects(f"az://{container}/t", {}, ManualClock())


# ---- what they answer

GONE = Reply(status=404)


@pytest.mark.integration
def test_a_signature_in_an_address_is_not_shown(server: ScriptedServer) -> None:
    signature = "sv=2026-01-01&sig=NOT-SHOWN"
    options = {"account_name": "a", "sas_token": signature, "azure_endpoint": server.endpoint}
    server.script = [fault(400, "Odd")]
    objects = open_objects("az://bucket/t", {**options, "allow_http": "true"}, ManualClock())
    with pytest.raises(errors.StoreUnavailable, match=r"HTTP 400 Odd: text of Odd$") as failed:
        objects.get("a")
    assert "NOT-SHOWN" in server.requests[0].path
    assert "NOT-SHOWN" not in str(failed.value)


@pytest.mark.integration
def test_deletes_go_one_by_one_and_tell_which_failed(server: ScriptedServer) -> None:
    objects = server.open(Reply(status=204), fault(412, "Held"), GONE, scheme="gs")

    results = [objects.delete([path]) for path in ("a", "b", "c")]
    assert [result.deleted for result in results] == [1, 0, 1]
    ((path, why),) = results[1].failed
    assert path == "b"
    assert "HTTP 412 Held" in why
    assert [r.method for r in server.requests] == ["DELETE"] * 3


@pytest.mark.integration
def test_a_store_that_does_not_answer_is_asked_for_few_deletes(server: ScriptedServer) -> None:
    objects = server.open(SLOW_DOWN, scheme="gs", limits=StoreLimits(retry_attempts_max=2))

    result = objects.delete([f"a/{number}" for number in range(300)])
    assert result.deleted == 0
    assert "not tried" in result.failed[-1][1]
    assert len(server.requests) < 100


@pytest.mark.integration
def test_a_listing_goes_on_where_a_fault_cut_it(server: ScriptedServer) -> None:
    keys = [f"d/{number:05}" for number in range(1500)]
    pages = (listing(*keys[:1000], more=True), SLOW_DOWN, listing(*keys[1000:]))
    objects = server.open(*pages, scheme="gs")

    files = [*objects.list("d")]
    assert [file.path for file in files] == keys
    assert {file.modified_at_nanos for file in files} == {1767323045678000000}
    assert (objects.counts.list, objects.counts.retries) == (3, 1)
    assert "start-after=some%2Ftable%2Fd%2F00999" in server.requests[2].path


@pytest.mark.integration
def test_a_tail_that_changed_while_it_was_read_is_read_again(server: ScriptedServer) -> None:
    replies = (part(b"01", 0, 5), fault(416, "InvalidRange"), part(b"12", 1, 3))
    objects = server.open(*replies, scheme="az")
    assert objects.get_tail("a", 2) == (b"12", 3)


@pytest.mark.integration
def test_a_key_that_is_no_path_is_named(server: ScriptedServer) -> None:
    objects = server.open(listing("d/1", "d//2"), scheme="gs")
    with pytest.raises(errors.Unsupported, match="some/table/d//2"):
        [*objects.list("d")]


def test_rows_are_written_to_local_files_only() -> None:
    with pytest.raises(errors.Unsupported, match="local files only"):
        check_file("az://lake/rows.parquet")
    with pytest.raises(errors.Usage, match="expected a name that ends in"):
        check_file("")
