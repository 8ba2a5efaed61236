"""What a job told, as it may go to Airflow's logs, exceptions and XComs; needs no Airflow."""

from __future__ import annotations

import time
from typing import Any

import pytest
from memwal_airflow.hooks.redaction import ERROR_CHARACTERS_MAX, Redactor, change_texts
from memwal_airflow.operators.outcomes import count_work, judge, summarize
from memwal_airflow.processes.process import Output as Ended

from memwal.jobs.merge.report import MergeTableReport
from memwal.text import one_line

FORGED = "held by \x1b[31mx\nINFO - merge: done\u202e"
ESCAPED = r"held by \x1b[31mx\nINFO - merge: done\u202e"
SECRET = "hunter2\nof two lines"


def report(error: str) -> dict[str, Any]:
    table = {"table": "orders", "outcome": "failed", "error": error}
    return {"job": "merge", "outcome": "failed", "error": None, "tables": [table]}


@pytest.mark.parametrize(
    ("told", "last_line"),
    [
        (report(FORGED), None),
        ({**report(""), "error": FORGED}, None),
        (None, FORGED),
    ],
)
def test_a_verdict_is_one_line(told: dict[str, Any] | None, last_line: str | None) -> None:
    _, text = judge(Ended(exit_code=4), told, last_line or "")
    assert text.endswith(ESCAPED)


def test_a_summary_has_no_other_text() -> None:
    shards = [{"shard_id": "a\x1b", "to_generation": 3}]
    table = {"table": FORGED, "error": FORGED, "shards": shards}
    assert judge(Ended(exit_code=0), {"outcome": FORGED})[1] == ESCAPED
    found = summarize({"outcome": FORGED, "error": FORGED, "tables": [table]})
    assert found["outcome"] == found["error"] == ESCAPED
    assert found["tables"][0]["table"] == found["tables"][0]["error"] == ESCAPED
    assert found["tables"][0]["watermark"] == {r"a\x1b": 3}


@pytest.mark.parametrize("before", [0, ERROR_CHARACTERS_MAX - 30, ERROR_CHARACTERS_MAX - 5])
def test_no_part_of_a_secret_is_left_where_a_text_is_cut(before: int) -> None:
    told = report("x" * before + SECRET + "y" * ERROR_CHARACTERS_MAX)
    _, text = judge(Ended(exit_code=5), told, "", ["", SECRET])
    (table,) = summarize(told, ["", SECRET])["tables"]
    _, line = judge(Ended(exit_code=5), None, told["tables"][0]["error"], [SECRET])
    for shown in (text, table["error"], line):
        assert "hunter2"[:2] not in shown
        assert len(shown) == ERROR_CHARACTERS_MAX + 1


def test_a_text_that_is_cut_keeps_its_code() -> None:
    error = "x" * 10_000 + " (MW-H01)"
    (table,) = summarize(report(error))["tables"]
    assert len(table["error"]) == ERROR_CHARACTERS_MAX + 1
    for shown in (table["error"], str(Redactor().clean(error))):
        assert shown.endswith("x… (MW-H01)")
    # Nor do escapes make it longer than it may be.
    (table,) = summarize(report("\x1b" * 10_000))["tables"]
    assert len(table["error"]) == ERROR_CHARACTERS_MAX + 1


def test_texts_of_a_document() -> None:
    found = change_texts({"a\n": [FORGED, 7, None, {"b": [FORGED]}]}, one_line)
    assert found == {r"a\n": [ESCAPED, 7, None, {"b": [ESCAPED]}]}


def test_what_was_done_is_counted_once() -> None:
    shard = {"shard_id": "a", "commits": 2, "rows_inserted": 3, "bytes_read": 10}
    shared = {**shard, "shard_id": "b", "commits_shared": 2, "rows_inserted": 0, "bytes_read": 0}
    assert count_work({"shards": [shard, shared]}) == {
        "commits": 2,
        "rows_inserted": 3,
        "bytes_read": 10,
    }
    ingest = {"rows_written": 5, "bytes_written": 7, "shards": [{"bytes_written": 7}]}
    assert count_work(ingest) == {"rows_written": 5, "bytes_written": 7}
    assert summarize({"tables": [ingest]})["tables"][0]["counts"] == count_work(ingest)


def test_what_a_merge_sums_up_is_counted_for_its_task() -> None:
    summed_up = MergeTableReport(table="orders", outcome="done").summary()
    done = {**dict.fromkeys(summed_up, 1), "shard_id": "a"}
    assert count_work({"shards": [done]}).keys() == summed_up.keys()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no such table s3://lake/orders: 404", "no such table s3://lake/orders: 404"),
        ("at s3://key:secret@lake/orders now", "at s3://***@lake/orders now"),
        ("at s3://key:sec/ret@lake/orders now", "at s3://***@lake/orders now"),
        ("at s3://key@lake/orders now", "at s3://***@lake/orders now"),
        ("az://lake/x?sv=1&sig=abc failed", "az://lake/x?*** failed"),
        ("('https://lake/x?sig=abc')", "('https://lake/x?***')"),
        ("mail me@example.com: why?", "mail me@example.com: why?"),
    ],
)
def test_texts_are_shown_without_credentials(text: str, shown: str) -> None:
    assert Redactor().clean(text) == shown


@pytest.mark.parametrize("text", ["://a:", "://:", "://?", "://a"])
def test_no_stored_text_keeps_the_page_busy(text: str) -> None:
    began = time.process_time()
    assert Redactor().clean(text * 20_000) is not None
    assert time.process_time() - began < 2  # by the square of its length it took 20 s
