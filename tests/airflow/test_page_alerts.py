"""What the page says is wrong with a table, since when, and what to do about it."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from local_airflow.home import ROOT
from memwal_airflow.hooks.redaction import Redactor
from memwal_airflow.page import plots
from memwal_airflow.page.alerts import (
    HEADINGS,
    find_advice,
    list_alerts,
    read_entries,
    read_exits,
    show_target,
)
from memwal_airflow.page.answers import Look, add_error, add_runs, add_status
from memwal_airflow.page.details import GROUPS_MAX, Detail, Details, Kind, sum_up
from memwal_airflow.page.feed import Clock
from memwal_airflow.page.health import HealthLimits, judge_health
from memwal_airflow.page.history import RunQuery, run_page

from tests.airflow import page_samples as samples

NOW, LIMITS = samples.NOW, HealthLimits()
UNCODED = [heading for heading in read_entries() if not heading.startswith("MW-")]


def list_messages() -> set[str]:
    """Every text in the code of memwal and of the page; … for what is filled in."""
    found = set()
    for folder in (ROOT / "memwal", ROOT / "airflow_plugins/memwal_airflow"):
        for file in folder.rglob("*.py"):
            if file.name == "advice.py":
                continue
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = [p.value if isinstance(p, ast.Constant) else "7" for p in node.values]
                    found.add("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(node.value)
    return found


MESSAGES = list_messages()


@pytest.mark.parametrize(("pattern", "begins"), HEADINGS)
def test_advice_is_an_entry_of_the_page_and_fits_what_memwal_says(
    pattern: str, begins: str
) -> None:
    assert len([heading for heading in UNCODED if heading.startswith(begins)]) == 1
    assert any(re.search(pattern, text) for text in MESSAGES)


def test_every_entry_without_a_code_is_advice_for_something() -> None:
    assert len(UNCODED) == len({begins for _, begins in HEADINGS}) > 10


def test_a_code_leads_to_its_entry() -> None:
    text = "the last merge failed: shard a: torn (MW-W03); b: a hole (MW-H01)"
    assert "stop the other program" in str(find_advice(text, 5, "orders"))
    assert "`memwal rescue orders --drop-torn`" in str(find_advice("x (MW-W03)", 8, "orders"))
    assert len(read_entries()) > 100


def test_commands_name_the_table_where_a_shell_takes_the_name() -> None:
    text = "shard 3c6ef372 looks abandoned: 5 WAL entries"
    assert find_advice(text, None, "orders-2") == (
        "`memwal rescue orders-2` once its writer is known to be gone"
    )
    assert "rescue TABLE`" in str(find_advice(text, None, "a; rm -rf /"))


def test_what_no_entry_knows_goes_by_the_exit_code() -> None:
    assert [*read_exits()] == [str(code) for code in range(9)]
    assert "run again" in str(find_advice("the last merge failed: odd", 6, "orders"))
    assert find_advice("odd", None, "orders") is None


def look(*runs: Any, **changes: Any) -> Look:
    seen = add_status(Look(name="orders"), samples.status("orders", **changes), NOW, Redactor())
    return add_runs(seen, {"table": "orders", "runs": list(runs)}, Redactor())


def alerts(seen: Look) -> list[Any]:
    return list_alerts(seen, judge_health(seen, NOW, LIMITS))


def test_a_row_of_failed_runs_is_as_old_as_the_first_of_them() -> None:
    failed = [samples.run("merge", n, outcome="failed", exit_code=6) for n in (5, 10, 15)]
    seen = look(*failed, samples.run("merge", 20), samples.run("merge", 25, outcome="failed"))
    [alert] = alerts(seen)
    assert (alert["state"], alert["since"]) == (
        "lagging",
        samples.ago(minutes=15)[:19] + ".000+00:00",
    )


def test_a_file_that_can_t_be_ingested_is_no_trouble_of_the_table() -> None:
    wrong = samples.run("ingest", 5, outcome="failed", exit_code=2)
    assert alerts(look(wrong)) == []
    [alert] = alerts(look(samples.run("ingest", 5, outcome="failed", exit_code=8)))
    assert alert["state"] == "broken"


@pytest.mark.parametrize(
    "job", ["init", "checkpoint", "quiesce", "rescue", "restore", "repair", "erase"]
)
def test_what_somebody_asked_for_in_vain_is_no_trouble_of_the_table(job: str) -> None:
    refused = samples.run(job, 5, outcome="refused", exit_code=5)
    assert alerts(look(refused)) == []
    assert len(alerts(look(samples.run(job, 5, outcome="failed", exit_code=8)))) == 1
    assert len(alerts(look(samples.run("merge", 5, outcome="refused", exit_code=5)))) == 1


def test_an_open_erasure_is_told_with_how_to_go_on() -> None:
    text = "erasure e1 is open: 3 objects left (memwal erase TABLE --resume e1 --execute)"
    [alert] = alerts(look(warnings=[text]))
    assert (alert["state"], alert["text"]) == ("warning", text)


def test_what_is_seen_again_is_as_old_as_when_it_was_first_seen() -> None:
    later = NOW + timedelta(minutes=5)
    broken = [samples.shard(0, outcome="failed", error="bad magic")]
    status = samples.status("orders", broken, outcome="partial")
    seen = add_status(look(shards=broken), status, later, Redactor())
    assert seen.broken_since == NOW
    assert add_status(seen, samples.status("orders"), later, Redactor()).broken_since is None
    silent = add_error(add_error(look(), "x", NOW, Redactor()), "x", later, Redactor())
    [alert] = alerts(silent)
    assert (alert["text"], alert["since"]) == ("the last look failed: x", plots.iso(NOW))


def test_what_is_only_due_or_held_is_no_alert() -> None:
    assert alerts(look(shards=[samples.shard(0, pending=9)], lease=samples.lease())) == []
    assert alerts(Look(name="orders")) == []


def test_a_target_is_kept_by_merges_that_came_in_time_and_left_nothing() -> None:
    def merge(minutes: float, left: int = 0) -> Any:
        return samples.run("merge", minutes, seconds=6, backlog={"generations_after": left})

    runs = merge(1), merge(1.5), merge(2, left=3), merge(2.5), merge(60)
    seen = replace(look(*runs), freshness_seconds=60.0)
    target = show_target(seen, NOW)
    assert target is not None
    # Not kept for sure: the one after three were left, and the one after an hour.
    assert (target["kept"], target["merges"]) == (2, 4)
    assert target["late_since"] is None
    late = replace(look(shards=[samples.shard(0, pending=1)]), freshness_seconds=60.0)
    assert judge_health(late, NOW, LIMITS).state == "lagging"
    assert (show_target(late, NOW) or {})["late_since"] == plots.iso(NOW - timedelta(minutes=3))
    assert show_target(look(), NOW) is None


@pytest.fixture
def answers(tmp_path: Path) -> samples.Answers:
    found = samples.Answers(tmp_path)
    found.name_tables("orders")
    return found


@pytest.fixture
def details(answers: samples.Answers) -> Iterator[Details]:
    clock = Clock(now=lambda: NOW, monotonic=time.monotonic)
    made = Details(answers.order, answers, clock)  # type: ignore[arg-type]
    yield made
    made.close()


URI = "s3://lake/orders"


def settle(details: Details, kind: Kind, name: str) -> Detail:
    details.look(kind, name, URI)
    samples.settle()
    return details.look(kind, name, URI)


def test_older_runs_are_looked_for_once_and_kept(
    details: Details, answers: samples.Answers
) -> None:
    answers.put(samples.status("orders"), samples.history(700, every_minutes=1))
    assert details.recall("runs", "orders", URI) == Detail()
    assert details.look("runs", "orders", URI).looking
    found = settle(details, "runs", "orders")
    assert len(found.runs) == 1000
    assert details.recall("runs", "orders", URI) == details.look("runs", "orders", URI) == found
    assert answers.calls == [("runs", ("orders",))]
    # The name leads somewhere else now.
    assert details.recall("runs", "orders", "s3://lake/others") == Detail()
    page = run_page(found.runs[:100], found, RunQuery(job="merge", offset=480))
    assert (page["fitting"], len(page["runs"]), page["cut_at"]) == (500, 20, 1000)
    # Of a record that both have, one is shown.
    assert page["total"] == 1000


def test_what_goes_wrong_with_a_detail_is_told(details: Details, answers: samples.Answers) -> None:
    assert "memwal runs (exit code 1): secret" in str(settle(details, "runs", "garbles").error)
    assert settle(details, "garbage", "orders").error is None
    answers.config.write_text("")
    assert settle(details, "runs", "orders").at is None


def test_many_reasons_are_summed_up() -> None:
    items = [
        {"kind": "generation", "action": "keep", "reason": f"version {n % 70}", "bytes": 10}
        for n in range(700)
    ]
    held = sum_up({"items": items})
    assert len(held) == GROUPS_MAX + 1
    assert sum(one.count for one in held) == 700
    assert (held[-1].count, held[-1].bytes) == (200, 2000)
