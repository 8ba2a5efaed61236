"""What an operator meets: cancelled runs, odd requests, reports that can't be written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from memwal.store.records.lease import StoredLeases
from tests.support import builders
from tests.support.builders import Put, Table
from tests.support.nursery import run_memwal

pytestmark = pytest.mark.nightly

MEMWAL = str(Path(sys.executable).with_name("memwal"))


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run_memwal(*arguments, cwd=cwd)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Table:
    table = builders.make_table(tmp_path_factory.mktemp("original") / "t", rows=range(5))
    for number in range(60):
        table.flush(table.shards[0], Put([10 + number, 0], number))
    return table


@pytest.fixture
def table(original: Table, tmp_path: Path) -> Table:
    return original.copied(tmp_path / "t")


def started_merge(table: Table, hangup: Any = signal.SIG_DFL) -> subprocess.Popen[str]:
    """A merge of a generation a commit, with three commits behind it.

    It stands still while it is looked at: on a busy machine it could have ended meanwhile.
    """
    before = int(table.dataset.version)

    def signals() -> None:
        # A background job of a shell would ignore SIGINT.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, hangup)

    process = subprocess.Popen(
        [
            MEMWAL, "merge", table.uri, "--engine", "local", "--json",
            "--generations-per-commit-max", "1",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=signals,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    process.send_signal(signal.SIGSTOP)
    while int(table.dataset.version) < before + 3:
        assert time.monotonic() < deadline
        process.send_signal(signal.SIGCONT)
        time.sleep(0.02)
        process.send_signal(signal.SIGSTOP)
    process.send_signal(signal.SIGCONT)
    return process


@pytest.mark.parametrize("numbers", [
    [signal.SIGTERM], [signal.SIGINT], [signal.SIGHUP], [signal.SIGHUP, signal.SIGHUP]
])  # fmt: skip
def test_a_cancelled_merge_stops_before_its_next_commit(table: Table, numbers: list[int]) -> None:
    before = int(table.dataset.version)
    process = started_merge(table)
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.05 * (len(numbers) - 1))
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


def test_a_merge_that_is_to_outlive_its_terminal_does(table: Table) -> None:
    process = started_merge(table, hangup=signal.SIG_IGN)  # as nohup starts it
    process.send_signal(signal.SIGHUP)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, json.loads(out)["outcome"]) == (0, "done"), err


# ---- streams that are full, closed, or read in part


def shell(line: str) -> tuple[int, str]:
    """The exit code of `memwal` (as `M`) in a line of bash, and what came to stderr."""
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; M={MEMWAL}; {line}"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize("flags", ["", "--json"])
@pytest.mark.parametrize(
    ("streams", "code", "told"),
    [
        (">/dev/full", 1, "stdout can't take the result: No space left on device"),
        (">/dev/full 2>/dev/full", 1, ""),
        (">&-", 0, "stdout can't take the result: it is closed"),
        ("<&- >&- 2>&-", 0, ""),
        ("2>/dev/full", 0, ""),
        ("2>&-", 0, ""),
        ("| (exec <&-; sleep 0.1)", 0, ""),
        ("| head -c 1", 0, ""),
    ],
)
def test_a_merge_lands_and_says_so_wherever_its_streams_lead(
    table: Table, flags: str, streams: str, code: int, told: str
) -> None:
    before = int(table.dataset.version)
    ended, err = shell(f"$M merge {table.uri} --engine local {flags} {streams}")
    assert ended == code
    after = int(table.dataset.version)
    assert after > before
    assert table.progress()[table.shards[0]] == 60
    if told:
        (line,) = (line for line in err.splitlines() if "stdout" in line)
        assert told in line
        assert line.endswith("merge has ended, done")


@pytest.mark.parametrize(
    "command", ["status TABLE", "read TABLE", "inspect index TABLE --json", "--help"]
)
def test_what_can_t_be_shown_is_told_in_a_line(table: Table, command: str) -> None:
    words = command.replace("TABLE", table.uri)
    code, err = shell(f"$M {words} >/dev/full")
    assert code == 1
    assert "stdout" in err and "No space left on device" in err
    assert len(err.splitlines()) == 1
    assert shell(f"$M {words} | head -1") == (0, "")


def test_a_failure_keeps_its_exit_code_on_a_full_stdout(tmp_path: Path) -> None:
    code, err = shell(f"$M merge {tmp_path}/nothing {tmp_path}/either >/dev/full")
    assert code == 2
    assert "no such table" in err


def test_a_closed_stream_s_number_goes_to_no_file() -> None:
    code = (
        "import os, memwal.cli.process as s; s.prepare(); print(os.open('/', 0), file=open(3, 'w'))"
    )
    line = f'{sys.executable} -c "{code}" 3>&1 0<&- 1>&- 2>&-'
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 3


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


def test_a_table_that_is_named_twice_is_one_table(table: Table, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("t")
    names = [table.uri, table.uri + "/", f"file://{table.uri}", str(tmp_path / "link")]
    done = run("maintain", *names, "--json")
    assert done.returncode == 0, done.stdout
    (found,) = json.loads(done.stdout)["tables"]
    assert (found["table"], found["outcome"]) == (table.uri, "done")
    assert f"{tmp_path}/link and {table.uri} are one table" in done.stderr


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
