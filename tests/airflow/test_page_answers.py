"""What the page makes of the documents of status and runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from memwal_airflow.hooks.command import JobsEnvironment
from memwal_airflow.hooks.query import NoAnswer, ask
from memwal_airflow.page.answers import (
    SHARDS_SHOWN_MAX,
    Look,
    add_error,
    add_runs,
    add_status,
    find_advice,
    find_state,
    iso,
    list_alerts,
    show_line,
    show_table,
)
from memwal_airflow.processes.process import Output

from tests.airflow import page_samples as samples

NOW = samples.NOW


def look(*runs: Any, **changes: Any) -> Look:
    seen = add_status(Look(name="orders"), samples.status("orders", **changes), NOW)
    return add_runs(seen, {"table": "orders", "runs": list(runs)})


BROKEN = samples.shard(1, outcome="failed", error="manifest 7 can't be read (MW-M01)")
AWAY = add_status(look(), samples.unreachable("orders"), NOW)


@pytest.mark.parametrize(
    ("seen", "state"),
    [
        (Look(name="orders"), "unknown"),
        (look(), "ok"),
        (look(shards=[samples.shard(0, pending=9)]), "attention"),
        (look(lease=samples.lease()), "ok"),
        (look(shards=[BROKEN], outcome="partial"), "broken"),
        (add_status(look(), {"table": "orders", "outcome": "failed", "error": "x"}, NOW), "broken"),
        (AWAY, "unreachable"),
        (add_error(look(), "no answer within 60 s", NOW), "unknown"),
        (add_status(AWAY, samples.status("orders"), NOW), "ok"),
    ],
)
def test_a_state_is_what_status_says(seen: Look, state: str) -> None:
    assert find_state(seen) == state
    assert show_line(seen)["state"] == state


def test_what_is_wrong_comes_with_what_to_do() -> None:
    hole = "shard 3c6e: generation 7 is neither merged nor listed (MW-H01)"
    shards = [samples.shard(0, pending=9), BROKEN]
    counted = {"what": "1 warning", "command": None}
    seen = look(shards=shards, outcome="partial", warnings=[hole])
    assert seen.status is not None
    seen = look(
        shards=shards,
        outcome="partial",
        warnings=[hole],
        attention=[*(a.model_dump() for a in seen.status.attention), counted],
    )
    found = list_alerts(seen)
    states = ["broken", "attention", "attention", "warning"]
    assert [alert["state"] for alert in found] == states
    assert "`memwal repair orders`" in found[0]["do"]
    assert found[2]["do"] == "`memwal merge orders`"
    assert "stop the other program" in found[3]["do"]
    assert show_line(seen)["why"] == [alert["text"] for alert in found[:3]]
    assert list_alerts(look()) == list_alerts(Look(name="orders")) == []


def test_a_look_without_an_answer_keeps_the_last_one_and_tells_since_when() -> None:
    later = NOW + timedelta(minutes=5)
    seen = add_error(add_error(look(samples.run()), "x", NOW), "y", later)
    [alert] = list_alerts(seen)
    assert (alert["text"], alert["since"]) == ("y", iso(NOW))
    line = show_line(seen)
    assert (line["looked_at"], line["rows"], line["problem"]) == (iso(NOW), 20_282, "y")
    again = add_status(seen, samples.status("orders"), later)
    assert (again.error, again.error_since) == (None, None)


def test_advice_goes_by_the_last_code_and_names_the_table() -> None:
    text = "the last merge failed: shard a: torn (MW-W03); b: a hole (MW-H01)"
    assert "stop the other program" in str(find_advice(text, "orders"))
    assert "`memwal rescue orders --drop-torn`" in str(find_advice("x (MW-W03)", "orders"))
    assert "rescue 'a; rm -rf /'" in str(find_advice("x (MW-W03)", "a; rm -rf /"))
    assert find_advice("odd", "orders") is None


def test_a_status_that_can_t_be_understood_is_told() -> None:
    seen = add_status(look(), samples.status("orders", due="perhaps"), NOW)
    assert str(seen.error).startswith("status not understood: due: ")
    assert find_state(seen) == "unknown"


@dataclass
class Said:
    """As `Runner`: every command says this."""

    output: Output

    def run(self, *_: Any) -> Output:
        return self.output


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (Output(why="can't start memwal", started=False), "can't start memwal"),
        (
            Output(stdout=b"{", stderr=b"one\ntwo", exit_code=2),
            r"memwal status \(exit code 2\) gave no document: .*two",
        ),
        (Output(stdout=b"[" * 100_000, exit_code=0), "gave no document: it said nothing"),
    ],
)
def test_what_is_no_answer_is_told(output: Output, says: str) -> None:
    with pytest.raises(NoAnswer, match=says):
        ask(Said(output), JobsEnvironment(command="m"), "status", ["orders"], seconds_max=1)  # type: ignore[arg-type]


def test_a_line_has_the_numbers_of_status_and_none_of_its_lists() -> None:
    line = show_line(look(*samples.history(3), shards=[samples.shard(0, pending=2)]))
    assert (line["pending_generations"], line["pending_bytes"]) == (2, 6 * samples.MIB)
    assert line["storage"]["base_bytes"] == 812 * samples.MIB
    assert line["last_run"]["job"] == "index-catchup"
    assert line["trend"][-2:] == [3, 4]
    assert not {"shards", "indexes", "runs", "warnings"} & set(line)


def test_a_table_has_all_and_its_worst_shards_first() -> None:
    gone = samples.shard(2, abandoned=True, unflushed_wal_entries=5, idle_seconds=7200.0)
    shards = [samples.shard(0), samples.shard(3, pending=4), gone, BROKEN]
    found = show_table(look(*samples.history(2), shards=shards, outcome="partial"))
    names = [shard["shard_id"] for shard in found["shards"]]
    assert names == [shards[n]["shard_id"] for n in (3, 2, 1, 0)]
    assert len(found["indexes"]) == 2
    [first, *_] = found["runs"]
    path = "/dags/memwal_index_catchup/runs/scheduled__2026-11-21T12%3A00%3A00%2B00%3A00"
    assert first["airflow"]["run_path"] == path
    many = [samples.shard(n) for n in range(SHARDS_SHOWN_MAX + 5)]
    found = show_table(look(shards=many))
    assert (len(found["shards"]), found["num_shards"]) == (SHARDS_SHOWN_MAX, len(many))


def test_run_records_that_can_t_be_read_leave_the_others() -> None:
    table = {"table": "orders", "outcome": "failed", "error": "access refused", "runs": None}
    seen = add_runs(look(samples.run()), table)
    assert (len(seen.runs), seen.runs_error) == (1, "access refused")
