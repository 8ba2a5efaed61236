"""What the page makes of memwal's answers: pure functions, no process, no clock."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from memwal_airflow.hooks.redaction import Redactor, find_secrets
from memwal_airflow.page import plots
from memwal_airflow.page.answers import (
    Look,
    Unclear,
    add_error,
    add_runs,
    add_status,
    read_tables,
)
from memwal_airflow.page.feed import Seen
from memwal_airflow.page.health import REASONS_MAX, STATES, HealthLimits, judge_health
from memwal_airflow.page.view_model import ShardQuery, show_line, show_overview, show_table

from tests.airflow import page_samples as samples

NOW = samples.NOW
LIMITS = HealthLimits()
TWO = {"generations": 2, "bytes": None}
CLEAN = Redactor()


def look(name: str = "orders", runs: list[Any] | None = None, **changes: Any) -> Look:
    """A table that was looked at just now."""
    known = add_status(Look(name=name), samples.status(name, **changes), NOW, CLEAN)
    return add_runs(known, {"table": name, "runs": runs or []}, CLEAN)


def shown(known: Look, **query: Any) -> Any:
    """A table's own part of the page."""
    return show_table(known, NOW, LIMITS, ShardQuery(**query))


def seen(*looks: Look, **changes: Any) -> Seen:
    found = Seen(looks=looks, problem=None, planned_at=NOW, tables_left_out=0, busy=False)
    return replace(found, **changes)


OLD = samples.ago(minutes=31)
BAD = samples.shard(1, outcome="failed", error="bad magic")
LAG = {"name": "id_idx", "caught_up": {}, "lag_generations": 3, "unindexed_rows": 9}
REFUSED = {"table": "orders", "outcome": "failed", "error": "no such bucket"}
DAY = 86_400.0


def failed(code: int, minutes: float = 1) -> Any:
    return samples.run("merge", minutes, outcome="failed", exit_code=code, error="timed out")


def aged(seconds: float) -> Look:
    return replace(look(), status_at=NOW - LIMITS.stale - timedelta(seconds=seconds))


def backed_up(days: float | None) -> Look:
    """With a backup that is so old, or with a place for one."""
    made = {} if days is None else {**samples.SAMPLES["backup"], "made_at": samples.ago(days=days)}
    place = {"uri": "s3://copies/orders", **made}
    return look(backup=place, backup_age_seconds=None if days is None else days * DAY)


def pending(number: int, **changes: Any) -> Look:
    return look(shards=[samples.shard(0, pending=number, **changes)])


PARTLY = {"shards": [samples.shard(0, pending=5), BAD], "outcome": "partial"}
SILENT = add_error(Look(name="orders"), "no answer within 60 s", NOW, CLEAN)
UNREADABLE = add_status(look(), REFUSED, NOW, CLEAN)
MENDED = add_status(UNREADABLE, samples.status("orders"), NOW, CLEAN)
BEFORE = samples.run("merge", 9)
EXPIRED = samples.lease(expires_at=samples.ago(minutes=1))
BUSY = {"shards": [samples.shard(0, pending=5)], "lease": samples.lease()}


@pytest.mark.parametrize(
    ("seen", "state", "reason"),
    [
        (look(runs=samples.history(3)), "ok", None),
        (Look(name="orders"), "unknown", None),
        (SILENT, "unknown", "no answer within 60 s"),
        # What is old says nothing.
        (aged(1), "unknown", None),
        (aged(0), "ok", None),
        (UNREADABLE, "broken", "no such bucket"),
        (MENDED, "ok", None),
        (look(**PARTLY), "broken", f"shard {BAD['shard_id']}: bad magic"),
        (look(**PARTLY), "broken", "5 pending generations"),
        # A run that needs a person, and one that the next may mend; the newest of a job counts.
        *((look(runs=[failed(code), BEFORE]), "broken", None) for code in (2, 5, 7, 8)),
        *((look(runs=[failed(code), BEFORE]), "lagging", None) for code in (1, 4, 6)),
        (look(runs=[samples.run("merge", 1), failed(8, 9)]), "ok", None),
        (pending(4), "due", "4 pending generations"),
        (look(due=True), "due", None),
        (pending(4, oldest_pending_flushed_at=OLD), "lagging", None),
        # A backlog below every limit may wait for as long as the limits let it.
        (pending(1, oldest_pending_flushed_at=OLD), "ok", None),
        (look(indexes=[LAG], runs=[samples.run("merge", 5)]), "due", None),
        (look(indexes=[LAG], runs=[samples.run("merge", 45)]), "lagging", None),
        (look(lease=samples.lease()), "held", "merge is at work: spark@worker-3:20117"),
        (look(lease=EXPIRED), "ok", None),
        (look(lease=samples.lease("released")), "ok", None),
        (look(**BUSY), "due", "merge is at work: spark@worker-3:20117"),
        (backed_up(1), "ok", None),
        (backed_up(3), "lagging", "the last backup is 3.0 d old"),
        (backed_up(None), "lagging", "no backup yet"),
    ],
)
def test_states_and_what_is_said_of_them(seen: Look, state: str, reason: str | None) -> None:
    found = judge_health(seen, NOW, LIMITS)
    assert found.state == state
    assert reason is None or any(reason in text for text in found.reasons)


def test_a_failed_look_keeps_the_last_good_data() -> None:
    failed = add_error(look(shards=[samples.shard(1, pending=2)]), "timed out", NOW, CLEAN)
    line = show_line(failed, NOW, LIMITS)
    assert line["health"]["state"] == "ok"
    assert line["error"] == "timed out"
    assert line["pending"]["generations"] == 2


def test_a_table_whose_store_does_not_answer_is_unreachable_not_broken() -> None:
    answer, later = samples.unreachable("orders"), NOW + timedelta(hours=3)
    away = add_status(look(shards=[samples.shard(1, pending=2)]), answer, NOW, CLEAN)
    away = add_status(away, answer, later, CLEAN)
    assert judge_health(away, later, LIMITS).reasons == (answer["error"],)
    line = show_line(replace(away, next_try_at=later), later, LIMITS)
    assert line["health"]["state"] == "unreachable"
    times = [line["unreachable_since"], line["next_try_at"]]
    assert times == [time.isoformat(timespec="milliseconds") for time in (NOW, later)]
    assert line["pending"]["generations"] == 2
    for mended in (
        add_status(away, samples.status("orders"), later, CLEAN),
        add_error(away, "can't start memwal", later, CLEAN),
    ):
        assert mended.unreachable_since is None


def test_a_shard_that_looks_abandoned_is_lagging_and_is_found() -> None:
    gone = samples.shard(1, abandoned=True, unflushed_wal_entries=5, idle_seconds=9000)
    seen = look(shards=[samples.shard(0), gone])
    health = judge_health(seen, NOW, LIMITS)
    assert health.state == "lagging"
    assert health.reasons[0].startswith(f"shard {gone['shard_id']} looks abandoned: 5 WAL")
    torn = look(shards=[BAD, gone])  # another shard that can't be read hides nothing
    assert judge_health(torn, NOW, LIMITS).marks == ("failing", "abandoned")
    page = shown(seen, only="abandoned")["shard_page"]
    assert [(s["shard_id"], s["unflushed"]) for s in page["shards"]] == [(gone["shard_id"], 5)]


def test_a_backup_is_shown_without_secrets() -> None:
    assert shown(backed_up(1))["backup"]["name"] == "monday"
    failed = samples.status("orders", backup={"uri": "x", "error": "hunter2-hunter2 is refused"})
    secret = add_status(Look(name="orders"), failed, NOW, Redactor(["hunter2-hunter2"]))
    assert "hunter2" not in str(shown(secret))


def test_reasons_are_bounded() -> None:
    many = look(shards=[samples.shard(n, pending=5) for n in range(50)])
    reasons = judge_health(many, NOW, LIMITS).reasons
    assert len(reasons) == REASONS_MAX
    assert reasons[-1] == f"and {50 - REASONS_MAX + 1} more"


def test_the_overview_has_the_worst_first_and_counts_them() -> None:
    well, unseen, busy = look("well"), Look(name="unseen"), look("at-work", lease=samples.lease())
    some, more = (
        look(n, shards=[samples.shard(0, pending=p)]) for n, p in (("some", 4), ("more", 9))
    )
    bad = look("bad", shards=[BAD])
    found = show_overview(seen(well, some, more, unseen, bad, busy), NOW, LIMITS)
    names = [line["name"] for line in found["tables"]]
    assert names == ["bad", "unseen", "more", "some", "at-work", "well"]
    counted = {"broken": 1, "unknown": 1, "due": 2, "held": 1, "ok": 1}
    assert found["counts"] == {**dict.fromkeys(STATES, 0), **counted}
    assert list(found["counts"]) == list(STATES)


def test_the_overview_is_as_old_as_its_oldest_look_that_went_well() -> None:
    old = replace(look("old"), status_at=NOW - timedelta(minutes=3))
    failed = add_error(replace(old, name="failed", status_at=None), "timed out", NOW, CLEAN)
    stale = add_error(
        replace(old, name="stale", status_at=NOW - timedelta(hours=1)), "x", NOW, CLEAN
    )
    looks = (look("new"), old, failed, stale, Look(name="unseen"))
    found = show_overview(seen(*looks), NOW + timedelta(seconds=9), LIMITS)
    assert found["looked_at"] == (NOW - timedelta(minutes=3)).isoformat(timespec="milliseconds")
    assert found["planned_at"] == NOW.isoformat(timespec="milliseconds")
    assert show_overview(seen(failed), NOW, LIMITS)["looked_at"] is None


def test_every_trouble_is_marked_beside_the_state() -> None:
    late = samples.shard(0, pending=4, oldest_pending_flushed_at=OLD)
    gone = samples.shard(1, abandoned=True, unflushed_wal_entries=5, idle_seconds=9000)

    def marks(seen: Look) -> list[str]:
        return list(show_line(seen, NOW, LIMITS)["health"]["marks"])

    assert marks(look()) == []
    all_at_once = look(shards=[late, gone], runs=[failed(6)], lease=samples.lease())
    assert marks(all_at_once) == ["late", "failing", "abandoned", "held"]
    assert marks(UNREADABLE) == marks(look(shards=[BAD])) == ["failing"]
    # What is old says nothing.
    assert marks(replace(look(lease=samples.lease()), status_at=NOW - timedelta(hours=1))) == []


@pytest.mark.nightly
def test_two_hundred_tables_make_a_small_document() -> None:
    looks = [look(f"t{n}", runs=samples.history(50)) for n in range(200)]
    found = show_overview(seen(*looks), NOW, LIMITS)
    assert len(found["tables"]) == 200
    assert len(str(found)) < 1_000_000
    assert all(len(line["trend"]) <= plots.TREND_POINTS_MAX for line in found["tables"])


def test_what_is_pending_is_not_known_beside_a_broken_shard() -> None:
    pending = show_line(look(shards=[samples.shard(0, pending=2)]), NOW, LIMITS)["pending"]
    assert pending == {"generations": 2, "bytes": 6 * samples.MIB}
    unknown = show_line(look(**PARTLY), NOW, LIMITS)["pending"]
    assert unknown == {"generations": None, "bytes": None}


def test_a_shard_tells_merged_against_flushed() -> None:
    page = shown(look(shards=[samples.shard(0, pending=3)]))
    shard = page["shard_page"]["shards"][0]
    assert (shard["merged_generation"], shard["flushed_generation"]) == (6, 9)
    assert (shard["pending"], shard["pending_from"], shard["pending_to"]) == (3, 7, 9)
    assert shard["writer_epoch"] == 3


def test_a_thousand_shards_come_in_pages() -> None:
    many = look(shards=[samples.shard(n, pending=n % 7) for n in range(1000)])

    def page(**query: Any) -> Any:
        return shown(many, **query)["shard_page"]

    first = page()
    assert (first["total"], first["fitting"], len(first["shards"])) == (1000, 1000, 50)
    assert [shard["pending"] for shard in first["shards"]] == [6] * 50
    assert len(page(limit=10_000)["shards"]) == 200
    everything = {
        s["shard_id"] for n in range(0, 1000, 200) for s in page(offset=n, limit=200)["shards"]
    }
    assert len(everything) == 1000
    assert page(offset=5000)["offset"] == 999
    one = first["shards"][0]["shard_id"]
    assert [shard["shard_id"] for shard in page(text=one.upper())["shards"]] == [one]
    assert page(only="due")["fitting"] == sum(n % 7 >= 4 for n in range(1000))
    assert page(only="broken")["fitting"] == 0
    assert page(only="nonsense", sort="nonsense")["fitting"] == 1000
    assert page(sort="id")["shards"][0]["shard_id"] < page(sort="id")["shards"][1]["shard_id"]


def test_the_backlog_is_drawn_before_and_after_each_run_up_to_now() -> None:
    runs = [
        samples.run("merge", 5),
        samples.run("merge", 20, backlog={"generations_before": 4, "generations_after": 1}),
        samples.run("garbage", 30, backlog={}),
    ]
    points = plots.backlog(look(runs=runs).runs, NOW.isoformat(), TWO)
    before = (6, 18 * samples.MIB)
    expected = [(4, None), (1, None), before, (0, 0), (2, None)]
    assert [(p["generations"], p["bytes"]) for p in points] == expected
    assert [p["at"] for p in points] == sorted(p["at"] for p in points)


def test_throughput_is_of_merges_that_moved_something() -> None:
    idle = samples.run("merge", 3, summary={"generations": 0})
    quick = samples.run("merge", 2, seconds=0.0)
    points = plots.throughput(look(runs=[idle, quick, samples.run("merge", 1, seconds=10)]).runs)
    assert [(p["rows"], p["bytes"]) for p in points] == [(240.0, 1.8 * samples.MIB)]


def test_series_are_bounded() -> None:
    runs = look(runs=samples.history(300, every_minutes=1)).runs
    assert len(plots.backlog(runs, None, None)) == plots.POINTS_MAX
    assert len(plots.throughput(runs)) == plots.POINTS_MAX


def test_what_a_run_did_is_told() -> None:
    runs = [samples.run("compaction", 1), samples.run("snapshot", 2)]
    compaction, snapshot = shown(look(runs=runs))["run_page"]["runs"]
    assert compaction["did"][0] == {"value": 14, "unit": "fragments:to", "to": 3}
    assert snapshot["did"] == [{"value": 3, "unit": "shards"}]


def test_a_run_leads_to_its_task() -> None:
    by_hand = samples.run("snapshot", 2, airflow=None)
    known = look(runs=[samples.run("merge", 1), by_hand])
    started, alone = show_table(known, NOW, LIMITS, ShardQuery(), "/airflow")["run_page"]["runs"]
    path = "/airflow/dags/memwal_merge/runs/scheduled__2026-11-21T12%3A00%3A00%2B00%3A00"
    assert started["airflow"] == {
        "dag_id": "memwal_merge",
        "run_id": "scheduled__2026-11-21T12:00:00+00:00",
        "task_id": "merge",
        "map_index": 3,
        "try_number": 1,
        "run_path": path,
        "log_path": f"{path}/tasks/merge/mapped/3?try_number=1",
    }
    assert alone["airflow"] is None


def test_a_record_that_makes_no_sense_is_counted_and_hides_no_other() -> None:
    odd = [{"job": "merge"}, "x", samples.run("merge", 1), samples.run("merge", 2, seconds=-1)]
    known = look(runs=odd)
    assert len(known.runs) == 1
    assert known.runs_unreadable == 3


def test_runs_that_could_not_be_read_keep_the_last_ones() -> None:
    known = add_runs(look(runs=samples.history(2)), {"error": "timed out"}, CLEAN)
    assert len(known.runs) == 4
    assert known.runs_error == "timed out"


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"job": "status"}', '{"job": "runs", "tables": []}', "[" * 100_000]
)
def test_what_is_no_report_is_unclear(text: str) -> None:
    with pytest.raises(Unclear):
        read_tables(text.encode(), "status")


def test_a_status_of_another_shape_is_an_error_that_names_the_field() -> None:
    odd = add_status(Look(name="x"), {**samples.status("x"), "rows": "many"}, NOW, CLEAN)
    assert odd.error is not None
    assert "rows" in odd.error
    assert odd.status is None


def test_secrets_do_not_get_through() -> None:
    options = {"aws_secret_access_key": "hunter2-hunter2", "aws_region": "eu-central-1"}
    redactor = Redactor(find_secrets(options))
    text = "403 for hunter2-hunter2 at s3://me:pass@lake/x in eu-central-1"
    assert redactor.clean(text) == "403 for *** at s3://***@lake/x in eu-central-1"
    assert len(str(redactor.clean("x" * 10_000))) == 600
    shard = samples.shard(0, outcome="failed", error="key hunter2-hunter2 refused")
    table = samples.status("x", shards=[shard], warnings=["hunter2-hunter2"])
    runs = [samples.run("merge", 1, outcome="failed", exit_code=1, error="hunter2-hunter2")]
    known = add_status(Look(name="x"), table, NOW, redactor)
    known = add_runs(known, {"runs": runs, "error": "hunter2-hunter2"}, redactor)
    known = add_error(known, "hunter2-hunter2", NOW, redactor)
    assert "hunter2" not in str(shown(known))


def test_checkpoints_are_listed_without_their_cut() -> None:
    times = {"created_at": samples.ago(minutes=6), "expires_at": None}
    kept = {**samples.SAMPLES["checkpoint"], **times}
    (found,) = shown(look(checkpoints=[kept]))["checkpoints"]
    assert found == {name: kept[name] for name in kept.keys() - {"cut", "tag"}}


def test_cursors_are_listed_with_when_they_cease_to_keep_versions() -> None:
    cursor = {**samples.SAMPLES["cursor"], "moved_at": samples.ago(days=1)}
    (found,) = shown(look(cursors=[cursor]))["cursors"]
    assert found.pop("expires_at").startswith("2026-12-04T12:00:00")
    assert found == {name: cursor[name] for name in cursor.keys() - {"transaction"}}
