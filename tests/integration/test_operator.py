"""What an operator meets: cancelled runs, odd requests, reports that can't be written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import builders
import pytest
from builders import Put, Table

from memwal.store.lease import StoredLeases

pytestmark = pytest.mark.integration

MEMWAL = str(Path(sys.executable).with_name("memwal"))


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MEMWAL, *arguments], capture_output=True, text=True, check=False, cwd=cwd
    )


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = builders.make_table(tmp_path / "t", rows=range(5))
    for number in range(60):
        table.flush(table.shards[0], Put([10 + number, 0], number))
    return table


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_cancelled_merge_stops_before_its_next_commit(table: Table, number: int) -> None:
    before = int(table.dataset.version)
    process = subprocess.Popen(
        [
            MEMWAL, "merge", table.uri, "--engine", "local", "--json",
            "--generations-per-commit-max", "1",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A background job of a shell would ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while int(table.dataset.version) < before + 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "cancelled" in json.loads(out)["error"]
    merged = table.progress()[table.shards[0]]
    assert 0 < merged < 60
    builders.check_versions(table, before)
    lease = table.stores.leases.current()
    assert lease is not None and lease.released
    assert run("merge", table.uri).returncode == 0
    builders.check_merged(table)


def test_a_report_that_can_t_be_written_is_said_before_the_work(table: Table) -> None:
    done = run("merge", table.uri, "--report", "/nowhere/at/all/r.json", "--json")
    assert done.returncode == 2
    assert "/nowhere/at/all" in json.loads(done.stdout)["error"]
    assert table.progress() == {}


def test_a_table_with_a_bad_store_option_fails_alone(table: Table, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(
        '\ufeff[tables.bad]\nuri = "s3://some-bucket/t"\n'
        '[tables.bad.storage_options]\naws_endpoint = "localhost:9000"\n'
        f'[tables.good]\nuri = "{table.uri}"\n',
        encoding="utf-8",
    )
    done = run("merge", "bad", "good", "--config", str(config), "--json")
    assert done.returncode == 6, done.stderr
    bad, good = json.loads(done.stdout)["tables"]
    assert (bad["table"], bad["outcome"]) == ("bad", "failed")
    assert "aws_endpoint" in bad["error"]
    assert good["outcome"] == "done"
    builders.check_merged(table)


def test_a_table_that_is_named_twice_is_worked_on_once(table: Table) -> None:
    done = run("merge", table.uri, table.uri + "/", "--json")
    assert done.returncode == 6
    first, second = json.loads(done.stdout)["tables"]
    assert first["outcome"] == "done"
    assert "named before" in second["error"]


def test_relative_paths_and_file_addresses(table: Table, tmp_path: Path) -> None:
    assert run("status", "./t/", cwd=tmp_path).returncode == 0
    assert run("status", f"file://{table.uri}").returncode == 0


def test_a_lease_held_elsewhere_is_visible_and_stops_a_merge(table: Table) -> None:
    StoredLeases(table.stores.objects, table.stores.clock, holder="ann@one:1").acquire("merge")
    status = json.loads(run("status", table.uri, "--json").stdout)["tables"][0]
    assert (status["lease"]["state"], status["lease"]["holder"]) == ("held", "ann@one:1")
    held = run("merge", table.uri)
    assert held.returncode == 4
    assert "ann@one:1" in held.stdout + held.stderr
    assert run("merge", table.uri, "--no-lease").returncode == 0
    builders.check_merged(table)


def test_nobody_else_may_read_a_secret(table: Table) -> None:
    done = run(
        "status", "s3://no-such-bucket-here/t", "--json",
        "--storage-option", "aws_endpoint=http://127.0.0.1:9",
        "--storage-option", "aws_access_key_id=AKIDEXAMPLE",
        "--storage-option", "aws_secret_access_key=hush-hush",
    )  # fmt: skip
    assert done.returncode == 2  # an http endpoint without allow_http
    assert "hush-hush" not in done.stdout + done.stderr
    assert os.environ.get("AWS_SECRET_ACCESS_KEY") != "hush-hush"
