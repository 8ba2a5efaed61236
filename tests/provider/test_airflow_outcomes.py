"""Exit codes and reports become what Airflow is told."""

from __future__ import annotations

from typing import Any

import pytest
from memwal_airflow.hooks.redaction import ERROR_CHARACTERS_MAX
from memwal_airflow.operators.outcomes import (
    WATERMARK_SHARDS_MAX,
    Verdict,
    assume_moved,
    judge,
    read_watermark,
    summarize,
)
from memwal_airflow.processes.process import Output as Ended

from memwal import errors
from memwal.errors import EXIT_PARTIAL


def merge_table(**more: Any) -> dict[str, Any]:
    shards = [{"shard_id": "a", "from_generation": 1, "to_generation": 4}]
    return {"table": "t", "outcome": "done", "shards": shards, **more}


def report(outcome: str = "done", **more: Any) -> dict[str, Any]:
    return {"job": "merge", "outcome": outcome, "tables": [merge_table()], **more}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (errors.Usage, Verdict.FAIL),
        (errors.NotATable, Verdict.FAIL),
        (errors.BadCredentials, Verdict.FAIL),
        (errors.LostRace, Verdict.HELD),
        (errors.LeaseHeld, Verdict.HELD),
        (errors.Refused, Verdict.FAIL),
        (errors.PartlyFailed, Verdict.FAIL),
        (errors.Unsupported, Verdict.FAIL),
        (errors.Corruption, Verdict.FAIL),
        (errors.StoreUnavailable, Verdict.RETRY),
        (errors.OutcomeUnknown, Verdict.RETRY),
    ],
)
def test_each_error_has_its_outcome(kind: type[errors.MemWalError], expected: Verdict) -> None:
    found, text = judge(Ended(exit_code=kind.exit_code), report("failed", error="because"))
    assert found is expected
    assert "because" in text


def test_a_table_is_named_once() -> None:
    tables = [{"table": "users", "error": "users: no such table"}, {"table": "b", "error": "torn"}]
    told = {"outcome": "failed", "tables": tables}
    found = judge(Ended(exit_code=errors.Usage.exit_code), told)[1]
    assert found == "exit code 2: users: no such table; b: torn"


def test_done_idle_and_partial() -> None:
    done = Ended(exit_code=0)
    assert judge(done, report())[0] is Verdict.SUCCESS
    assert judge(done, report("nothing_to_do"))[0] is Verdict.SKIP
    assert judge(Ended(exit_code=EXIT_PARTIAL), report("partial"))[0] is Verdict.FAIL


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        (["held"], Verdict.HELD),
        (["done", "nothing_to_do", "held"], Verdict.HELD),
        (["done", "failed", "held"], Verdict.FAIL),
        (["done", "partial", "held"], Verdict.FAIL),
        (["done"], Verdict.FAIL),
    ],
)
def test_a_held_lease_is_waited_for_if_nothing_else_is_wrong(
    outcomes: list[str], expected: Verdict
) -> None:
    tables = [merge_table(outcome=outcome) for outcome in outcomes]
    told = report("partial", tables=tables)
    assert judge(Ended(exit_code=EXIT_PARTIAL), told)[0] is expected
    # Of a backfill, a job at a time.
    jobs = [{"job": "merge", "outcome": outcome} for outcome in outcomes]
    told = report("partial", tables=[merge_table(outcome="partial", jobs=jobs)])
    assert judge(Ended(exit_code=EXIT_PARTIAL), told)[0] is expected


def test_whoever_else_is_at_work_is_waited_for_but_not_by_an_ingest() -> None:
    held = Ended(exit_code=errors.EXIT_HELD)
    lost_race = report("failed", tables=[merge_table(outcome="failed")])
    for told in (report("held", tables=[merge_table(outcome="held")]), lost_race):
        assert judge(held, told)[0] is Verdict.HELD
        assert judge(held, {**told, "job": "ingest"})[0] is Verdict.RETRY


def test_a_job_that_was_ended_is_tried_again() -> None:
    found = judge(Ended(why="was told to end"), report())
    assert found == (Verdict.RETRY, "the job was told to end")
    found = judge(Ended(why="can't start memwal", started=False), None)
    assert found == (Verdict.RETRY, "can't start memwal")


@pytest.mark.parametrize("code", [-9, 127, 130, 137])
def test_a_process_that_died_is_tried_again(code: int) -> None:
    assert judge(Ended(exit_code=code), None)[0] is Verdict.RETRY


def test_success_without_a_report_proves_nothing() -> None:
    assert judge(Ended(exit_code=0), None)[0] is Verdict.RETRY


def test_the_text_names_the_tables_that_failed() -> None:
    tables = [merge_table(), merge_table(table="u", outcome="failed", error="torn manifest")]
    _, text = judge(Ended(exit_code=8), report("failed", tables=tables))
    assert "u: torn manifest" in text


def test_the_last_log_line_stands_in_for_a_report() -> None:
    assert "no such command" in judge(Ended(exit_code=2), None, "no such command")[1]


def test_the_summary_is_bounded() -> None:
    many = [{"shard_id": f"{n:05}", "to_generation": n} for n in range(5000)]
    tables = [merge_table(shards=many, error="x" * 10_000)]
    found = summarize(report("done", tables=tables))["tables"][0]
    assert len(found["watermark"]) == WATERMARK_SHARDS_MAX
    assert found["watermark_shards"] == 5000
    assert len(found["error"]) <= ERROR_CHARACTERS_MAX + 1


def test_watermarks() -> None:
    assert read_watermark(merge_table()) == {"a": 4}
    indexes = [{"caught_up": {"a": 4, "b": 1}}, {"caught_up": {"a": 3}}]
    assert read_watermark({"indexes": indexes}) == {"a": 3, "b": 0}
    assert read_watermark({"jobs": [merge_table(), {"items": []}]}) == {"a": 4}


def test_a_failed_table_that_moved_is_told_of() -> None:
    moved = merge_table(outcome="failed", version_before=3, version_after=4)
    stood = merge_table(outcome="failed", version_before=3, version_after=3)
    idle = merge_table(outcome="nothing_to_do", version_before=3, version_after=3)
    found = summarize(report("partial", tables=[moved, stood, idle]))
    assert [table["progress"] for table in found["tables"]] == [True, False, False]


def test_secrets_are_hidden_wherever_they_stand() -> None:
    told = {"error": "bad key se/cret", "tables": [{"error": "se/cret"}], "seconds": 1.5}
    found = summarize(report("failed", **told), ["", "se/cret"])
    assert (found["error"], found["tables"][0]["error"]) == ("bad key ***", "***")
    assert found["seconds"] == 1.5


def test_no_report_makes_an_empty_summary() -> None:
    assert summarize(None) == {"outcome": None, "tables": []}


def test_on_a_later_try_whatever_could_be_looked_at_counts_as_moved() -> None:
    """An earlier one may have moved it, and died before it said so."""
    idle = merge_table(outcome="nothing_to_do", version_before=3, version_after=3)
    moved = merge_table(version_before=3, version_after=4)
    away = merge_table(outcome="failed")
    chain = {**away, "jobs": [{"job": "merge", **idle}]}
    found = summarize(report(tables=[idle, moved, away, chain]))
    assume_moved(found)
    assert [t["progress"] for t in found["tables"]] == [True, True, False, False]
    assert [t["version_before"] for t in found["tables"]] == [None] * 4
    assert found["tables"][3]["jobs"][0]["progress"] is True
