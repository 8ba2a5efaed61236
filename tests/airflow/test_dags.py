"""The shipped DAGs, run for real."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import Asset
from airflow.sdk.exceptions import ParamValidationError
from memwal_airflow.assets.events import build_asset, find_triggering_tables
from memwal_airflow.operators.base import SUMMARY_KEY
from memwal_airflow.task_groups import memwal_task_group

from tests.airflow.airflow_server import DAGS, InProcessAirflow
from tests.airflow.dag_runs import asset_events, run_shipped, run_tasks

HEAD = """\
[defaults]
engine = "local"
due_generations_min = 1

[airflow]
deferrable = false
retries = 1
retry_delay_seconds = 0.01
"""
RECORDER = """#!{python} -IS
import json, sys
with open({file!r}, "a") as file:
    print(json.dumps(sys.argv[1:]), file=file)
with open(sys.argv[sys.argv.index("--report") + 1], "w") as report:
    json.dump({{"job": sys.argv[1], "outcome": "done", "tables": []}}, report)
"""
SHIPPED = {
    "memwal_backfill",
    "memwal_backup",
    "memwal_compaction",
    "memwal_garbage",
    "memwal_index_catchup",
    "memwal_merge",
    "memwal_rescue",
    "memwal_snapshot",
    "memwal_verify",
}


def test_a_file_of_one_line_a_dag_has_them_all(tmp_path: Path, home: InProcessAirflow) -> None:
    """Those that the provider's wheel brings; more than once, as one process may read files."""
    lines = [f"from memwal_airflow.dags.{name} import dag as {name}\n" for name in sorted(SHIPPED)]
    (tmp_path / "memwal.py").write_text("".join(lines))
    for _ in range(2):
        bag = DagBag(dag_folder=tmp_path)
        assert not bag.import_errors
        assert {*bag.dags} == SHIPPED
    assert {Path(dag.fileloc).name for dag in bag.dags.values()} == {"memwal.py"}


@pytest.fixture
def home(airflow_home: InProcessAirflow) -> InProcessAirflow:
    airflow_home.tables.set_head(HEAD)
    return airflow_home


@pytest.fixture
def recorded(home: InProcessAirflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a stand-in for the command writes its words; every job of it has done something."""
    command, file = tmp_path / "memwal", tmp_path / "words"
    command.write_text(RECORDER.format(python=sys.executable, file=str(file)))
    command.chmod(0o755)
    monkeypatch.setenv("AIRFLOW__MEMWAL__COMMAND", str(command))
    return file


def words_of(recorded: Path) -> list[list[str]]:
    return [json.loads(line) for line in recorded.read_text().splitlines()]


def test_a_broken_table_fails_alone_and_the_others_are_told_of(home: InProcessAirflow) -> None:
    least = {"priority": 1}
    home.tables.make("broken", generations=1, settings=least).break_shard()
    orders = home.tables.make("orders", shards=2, generations=2)
    users = home.tables.make("users", generations=1)
    home.tables.make("idle")
    ran = run_shipped(home, "memwal_merge")

    assert ran.xcom("plan") == ["orders", "users", "broken"]
    assert ran.states == {
        ("tables", -1): "success",
        ("plan", -1): "success",
        ("merge", 0): "success",
        ("merge", 1): "success",
        ("merge", 2): "failed",
        ("announce", 0): "success",
        ("announce", 1): "success",
        ("announce", 2): "success",
    }
    assert ran.state == "failed"
    assert ran.xcom("announce", map_index=1) == ["users"]
    events = dict(asset_events())
    assert set(events) == {"memwal merged orders", "memwal merged users"}
    assert events["memwal merged orders"]["watermark"] == orders.flushed()
    assert events["memwal merged users"]["table"] == "users"
    orders.check()
    users.check()


def test_progress_of_a_try_that_died_is_told_by_the_next(
    home: InProcessAirflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = home.tables.make("orders", generations=2)
    # The first merge commits, and dies before it can say so.
    dying = tmp_path / "memwal"
    dying.write_text(
        f'#!/bin/sh\n{os.environ["AIRFLOW__MEMWAL__COMMAND"]} "$@" || exit $?\n'
        f'[ "$1" = merge ] && mkdir {tmp_path}/died 2>/dev/null && kill -9 $$\nexit 0\n'
    )
    dying.chmod(0o755)
    monkeypatch.setenv("AIRFLOW__MEMWAL__COMMAND", str(dying))
    ran = run_shipped(home, "memwal_merge")
    assert (tmp_path / "died").exists()
    assert orders.progress() == orders.flushed()
    assert (ran.task("merge", 0).try_number, ran.states[("merge", 0)]) == (2, "success")
    assert [name for name, _ in asset_events()] == ["memwal merged orders"]


def test_a_table_out_of_reach_is_no_news(
    home: InProcessAirflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.tables.make("orders", generations=1)
    away, failing = {"outcome": "failed", "error": "the store is away"}, tmp_path / "memwal"
    report = {"job": "merge", "tables": [{"table": "orders", **away}], **away}
    failing.write_text(
        f'#!/bin/sh\n[ "$1" = merge ] || exec {os.environ["AIRFLOW__MEMWAL__COMMAND"]} "$@"\n'
        'while [ "$1" != --report ]; do shift; done\n'
        f"echo '{json.dumps(report)}' > \"$2\"\nexit 1\n"
    )
    failing.chmod(0o755)
    monkeypatch.setenv("AIRFLOW__MEMWAL__COMMAND", str(failing))
    ran = run_shipped(home, "memwal_merge")
    assert (ran.task("merge", 0).try_number, ran.states[("merge", 0)]) == (2, "failed")
    assert ran.states[("announce", 0)] == "success"
    assert asset_events() == []


@pytest.mark.parametrize("job", ["merge", "index_catchup", "snapshot", "garbage"])
def test_a_run_that_waits_for_one_table_does_not_hold_up_the_next(
    home: InProcessAirflow, job: str
) -> None:
    assert home.load_dag(f"memwal_{job}").max_active_runs == 3


@pytest.mark.parametrize("dag_id", sorted(SHIPPED - {"memwal_rescue"}))
def test_a_range_of_dates_is_not_to_be_had(home: InProcessAirflow, dag_id: str) -> None:
    home.tables.make("orders")
    from airflow.models.dag import DagModel
    from airflow.settings import Session

    dag = home.load_dag(dag_id)
    allowed = {kind.value for kind in dag.allowed_run_types}
    assert {"scheduled", "manual", "asset_triggered", "operator_triggered"} < allowed
    home.register(dag)
    known = Session().get(DagModel, dag_id)
    assert known is not None
    assert set(known.allowed_run_types) == allowed
    assert "backfill" not in allowed


@pytest.mark.parametrize("dag_id", sorted(SHIPPED))
def test_every_task_is_tried_again_and_keeps_to_the_pool(
    home: InProcessAirflow, dag_id: str
) -> None:
    """The one that lists the tables, too: the events that started a run come once."""
    home.tables.set_head(HEAD + 'pool = "lake"\n')
    home.tables.make("orders")
    tasks = home.load_dag(dag_id).tasks
    assert {"tables"} < {task.task_id for task in tasks}
    assert {(task.task_id, task.retries, task.pool) for task in tasks} == {
        (task.task_id, 1, "lake") for task in tasks
    }


def test_an_idle_tick_maps_to_nothing_and_tells_nothing(home: InProcessAirflow) -> None:
    home.tables.make("idle")
    ran = run_shipped(home, "memwal_merge")
    assert ran.state == "success"
    assert ran.states[("merge", -1)] == "skipped"
    assert asset_events() == []


def test_catchup_snapshot_garbage_and_compaction_by_hand_work_on_every_table(
    home: InProcessAirflow,
) -> None:
    tables = [home.tables.make(name, generations=2) for name in ("orders", "users")]
    assert run_shipped(home, "memwal_merge").state == "success"
    for dag_id in ("memwal_index_catchup", "memwal_snapshot", "memwal_compaction"):
        assert run_shipped(home, dag_id).state == "success", dag_id
    # Airflow starts the tables of one run in any order.
    watermarks = {name: extra.get("watermark") for name, extra in asset_events()}
    for name, table in zip(("orders", "users"), tables, strict=True):
        assert watermarks[f"memwal indexed {name}"] == table.flushed()
    garbage = run_shipped(home, "memwal_garbage")
    assert garbage.state == "success"
    # Only the merges changed rows.
    of_tables = [name for name, _ in asset_events(of_tables=True)]
    assert sorted(of_tables) == [f"file://{table.uri}" for table in tables]
    assert set(garbage.states) >= {("garbage", 0), ("garbage", 1)}
    # Once more: nothing is left to do, and nothing is told again.
    before = len(asset_events())
    again = run_shipped(home, "memwal_index_catchup")
    assert again.states[("index_catchup", 0)] == "skipped"
    assert len(asset_events()) == before
    for table in tables:
        table.check()


def test_backfill_runs_what_was_chosen_on_what_was_chosen(home: InProcessAirflow) -> None:
    orders = home.tables.make("orders", shards=2, generations=3)
    users = home.tables.make("users", generations=1)
    conf = {
        "tables": ["orders"],
        "jobs": ["merge", "snapshot"],
        "shards": [orders.shards[0]],
        "until_generation": 2,
        "generations_per_commit_max": 1,
        "concurrency": 2,
        "deadline": "1h",
        "engine": "local",
        "lease_seconds": 60,
        "dry_run": False,
    }
    ran = run_shipped(home, "memwal_backfill", conf)
    assert ran.state == "success"
    assert orders.progress() == {orders.shards[0]: 2}
    assert users.progress() == {}
    states = {task: state for (task, _), state in ran.states.items()}
    assert states["backfill"] == states["table.snapshot"] == "success"
    assert states["table.compaction"] == states["table.garbage"] == "skipped"
    assert [name for name, _ in asset_events()] == ["memwal merged orders"]
    (told,) = ran.xcom("backfill")["tables"]
    assert [(job["job"], job["outcome"]) for job in told["jobs"]] == [("merge", "done")]
    orders.check(merged=False)


def test_a_backfill_goes_on_with_other_tables(home: InProcessAirflow) -> None:
    home.tables.make("broken", generations=1).break_shard()
    users = home.tables.make("users", generations=1)
    ran = run_shipped(home, "memwal_backfill", {"tables": ["broken", "users"], "dry_run": False})
    assert ran.state == "failed"
    assert ran.states[("backfill", -1)] == "failed"
    assert ran.states[("table.backfilled", 0)] == "failed"
    assert ran.states[("table.snapshot", 0)] == "upstream_failed"
    assert ran.states[("table.snapshot", 1)] == "success"
    assert users.progress() == users.flushed()
    assert {name for name, _ in asset_events()} == {"memwal merged users", "memwal indexed users"}


def test_a_backfill_that_could_not_begin_names_the_reason_for_each_table(
    home: InProcessAirflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.tables.make("orders", generations=1)
    monkeypatch.setenv("MEMWAL_DUE_GENERATIONS_MIN", "many")
    ran = run_shipped(home, "memwal_backfill", {"tables": ["orders"]})
    assert ran.states[("table.backfilled", 0)] == "failed"
    found = ran.xcom("backfill", SUMMARY_KEY)
    assert (found["job"], found["tables"]) == ("backfill", [])
    assert "MEMWAL_DUE_GENERATIONS_MIN: " in found["error"]


def test_a_backfill_without_merge_and_catchup_does_the_rest(home: InProcessAirflow) -> None:
    home.tables.make("orders", generations=1)
    conf = {"tables": ["orders"], "jobs": ["snapshot"], "dry_run": False}
    ran = run_shipped(home, "memwal_backfill", conf)
    assert ran.state == "success"
    assert ran.states[("backfill", -1)] == "skipped"
    assert ran.states[("table.snapshot", 0)] == "success"


def test_a_dry_backfill_changes_and_tells_nothing(home: InProcessAirflow) -> None:
    orders = home.tables.make("orders", generations=1)
    conf = {"tables": ["orders"], "jobs": ["merge", "garbage"], "dry_run": True, "execute": True}
    ran = run_shipped(home, "memwal_backfill", conf)
    assert ran.state == "success"
    assert orders.progress() == {}
    assert asset_events() == []


@pytest.mark.parametrize(
    "conf",
    [
        {"tables": []},
        {"tables": "orders"},
        {"tables": ["orders"], "jobs": ["drop"]},
        {"tables": ["/no/such/table"]},
        {"tables": ["orders", "--master=spark://elsewhere"]},
        {"tables": ["orders"], "shards": ["../../x"]},
        {"tables": ["orders"], "shards": ["-" * 36]},
        {"tables": ["orders"], "until_generation": 0},
        {"tables": ["orders"], "dry_run": "yes"},
    ],
)
def test_the_form_refuses_what_does_not_fit(home: InProcessAirflow, conf: dict[str, Any]) -> None:
    home.tables.make("orders", generations=1)
    params = home.load_dag("memwal_backfill").params.__copy__()
    with pytest.raises(ParamValidationError, match="Invalid input"):
        params.update(conf)


@pytest.mark.parametrize("dag_id", sorted(SHIPPED))
def test_every_form_refuses_other_tables(home: InProcessAirflow, dag_id: str) -> None:
    """As Airflow does when it makes a run: the schemas travel to the API server."""
    orders = home.tables.make("orders")
    params = home.load_dag(dag_id).params
    params.__copy__().update({"tables": ["orders"]})
    params.__copy__().update({"tables": [orders.uri]})
    for conf in (
        {"tables": ["orders", "--storage-option=aws_endpoint=http://elsewhere"]},
        {"tables": [str(home.folder)]},
        {"tables": "orders"},
    ):
        with pytest.raises(ParamValidationError):
            params.__copy__().update(conf)
    home.tables.set_head(HEAD + "any_address = true\n")
    params = home.load_dag(dag_id).params
    params.__copy__().update({"tables": [str(home.folder)]})
    with pytest.raises(ParamValidationError):
        params.__copy__().update({"tables": ["--master=spark://elsewhere"]})


@pytest.mark.parametrize("dag_id", sorted(SHIPPED - {"memwal_verify"}))
def test_a_dry_run_is_true_or_false(home: InProcessAirflow, dag_id: str) -> None:
    params = home.load_dag(dag_id).params.__copy__()
    with pytest.raises(ParamValidationError):
        params.update({"dry_run": "yes"})


@pytest.mark.parametrize("dag_id", sorted(SHIPPED))
def test_every_dag_says_whose_it_is_and_what_it_does(home: InProcessAirflow, dag_id: str) -> None:
    home.tables.set_head(HEAD + 'owner = "lake"\n')
    dag = home.load_dag(dag_id)
    job = dag_id.removeprefix("memwal_").replace("_", "-")
    assert {task.owner for task in dag.tasks} == {"lake"}
    assert dag.tags == {"memwal", f"memwal:{job}"}
    assert dag.doc_md.startswith(dag.description[:20])
    assert "\n" not in dag.description
    assert all(task.doc_md for task in dag.tasks), [t.task_id for t in dag.tasks if not t.doc_md]


@pytest.mark.parametrize(
    "conf",
    [{"retention": "soon"}, {"grace": "-1h"}, {"execute": "yes"}, {"wal": 1}, {"wal": None}],
)
def test_the_garbage_form_refuses_what_does_not_fit(
    home: InProcessAirflow, conf: dict[str, Any]
) -> None:
    params = home.load_dag("memwal_garbage").params.__copy__()
    with pytest.raises(ParamValidationError):
        params.update(conf)


@pytest.mark.parametrize("dag_id", sorted(SHIPPED))
def test_a_misspelt_key_fails_the_run_before_any_job(
    home: InProcessAirflow, recorded: Path, capfd: pytest.CaptureFixture[str], dag_id: str
) -> None:
    home.tables.make("orders", generations=1)
    ran = run_shipped(home, dag_id, {"tables": ["orders"], "tabels": []})
    assert ran.state == "failed"
    assert ran.states[("tables", -1)] == "failed"
    assert not recorded.exists()
    assert "unknown key 'tabels' in the run's conf (is 'tables' meant?)" in capfd.readouterr().out


def test_a_conf_that_airflow_would_ignore_fails_the_run(
    home: InProcessAirflow, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.tables.make("orders", generations=1)
    monkeypatch.setenv("AIRFLOW__CORE__DAG_RUN_CONF_OVERRIDES_PARAMS", "False")
    ran = run_shipped(home, "memwal_merge", {"dry_run": True})
    assert ran.states[("tables", -1)] == "failed"
    assert not recorded.exists()


def test_a_merge_by_hand_works_on_what_it_names_due_or_not(home: InProcessAirflow) -> None:
    early = {"due_generations_min": 9, "due_age_seconds_min": 3600}
    orders = home.tables.make("orders", generations=1, settings=early)
    users = home.tables.make("users", generations=1)
    conf = {"tables": ["orders"], "dry_run": True}
    dry = run_shipped(home, "memwal_merge", conf)
    assert (dry.state, dry.xcom("plan")) == ("success", ["orders"])
    assert dry.xcom("merge", SUMMARY_KEY, 0)["dry_run"] is True
    assert orders.progress() == users.progress() == {}
    assert asset_events() == []

    ran = run_shipped(home, "memwal_merge", {"tables": ["orders"]})
    assert ran.state == "success"
    assert orders.progress() == orders.flushed()
    assert users.progress() == {}
    # Without a name: what is due.
    assert run_shipped(home, "memwal_merge").xcom("plan") == ["users"]


@pytest.mark.parametrize("job", ["index-catchup", "snapshot", "compaction", "garbage"])
def test_the_others_do_what_the_conf_says(home: InProcessAirflow, recorded: Path, job: str) -> None:
    home.tables.make("orders")
    home.tables.make("users")
    conf = {"tables": ["users"], "dry_run": True}
    ran = run_shipped(home, f"memwal_{job.replace('-', '_')}", conf)
    assert ran.xcom("tables") == ["users"]
    (words,) = words_of(recorded)
    assert words[0] == job
    assert "--dry-run" in words
    assert words[words.index("--") :] == ["--", "users"]


@pytest.mark.parametrize("job", ["index-catchup", "snapshot", "compaction", "verify", "garbage"])
def test_by_hand_and_without_a_conf_they_do_what_the_schedule_does(
    home: InProcessAirflow, recorded: Path, job: str
) -> None:
    home.tables.set_head(HEAD + "garbage_execute = true\n")
    for name in ("orders", "users"):
        home.tables.make(name)
    assert run_shipped(home, f"memwal_{job.replace('-', '_')}").state == "success"
    said = words_of(recorded)
    assert sorted((words[0], words[-1]) for words in said) == [(job, "orders"), (job, "users")]
    for words in said:
        assert "--dry-run" not in words
        assert ("--execute" in words) == (job == "garbage")


def test_garbage_does_what_the_conf_says(home: InProcessAirflow, recorded: Path) -> None:
    home.tables.set_head(HEAD + 'garbage_execute = true\nretention = "7d"\ngarbage_wal = true\n')
    home.tables.make("orders")
    own = {"execute": False, "retention": "9d", "grace": "2h", "wal": False}
    said = {"--execute", "--wal", "--retention=7d", "--retention=9d", "--grace=2h", "--dry-run"}
    for conf, expected in (
        ({}, {"--execute", "--wal", "--retention=7d"}),
        ({"dry_run": True}, {"--execute", "--wal", "--retention=7d", "--dry-run"}),
        (own, {"--retention=9d", "--grace=2h"}),
        ({"retention": None}, {"--execute", "--wal"}),
    ):
        assert run_shipped(home, "memwal_garbage", conf).state == "success"
        words = words_of(recorded)[-1]
        assert said & set(words) == expected, conf


def test_verify_names_the_broken_table_and_starts_nothing(
    home: InProcessAirflow, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("orders", "users"):
        home.tables.make(name, generations=1)
    home.tables.make("broken", generations=1).break_shard()
    ran = run_shipped(home, "memwal_verify")
    assert ran.states == {
        ("tables", -1): "success",
        ("verify", 0): "success",
        ("verify", 1): "success",
        ("verify", 2): "failed",
    }
    broken = ran.task("verify", 2)
    assert (broken.try_number, broken.rendered_map_index) == (1, "broken")
    said = "".join(capfd.readouterr())
    assert "memwal verify: exit code 8: broken: invariant 10, shard manifests: " in said
    # What Airflow's page folds up, once a table: the command, and what the job itself says.
    assert said.count("::group::The job's command") == said.count("::group::The job's log") == 3
    assert said.count("::endgroup::") >= 6
    assert asset_events() == []


def test_a_backup_goes_where_the_file_says_and_is_announced(home: InProcessAirflow) -> None:
    home.tables.make("plain")
    assert home.load_dag("memwal_backup").schedule is None  # off until a table has a place
    place = home.folder / "copies"
    home.tables.make("orders", generations=1, settings={"backup.uri": str(place)})
    assert home.load_dag("memwal_backup").schedule.expression == "0 1 * * *"

    ran = run_shipped(home, "memwal_backup")

    assert ran.xcom("tables") == ["orders"]
    assert ran.states == {
        ("tables", -1): "success",
        ("backup", 0): "success",
        ("announce", 0): "success",
    }
    (summary,) = ran.xcom("backup", map_index=0)["tables"]
    assert summary["outcome"] == "done"
    assert len(list((place / "_maintenance/backups").glob("*.pb"))) == 1
    assert [name for name, _ in asset_events()] == ["memwal backed-up orders"]

    named = run_shipped(home, "memwal_backup", {"tables": ["plain"]})
    assert named.states[("backup", 0)] == "failed"


def test_a_backup_is_read_again_and_takes_no_place_from_a_run(
    home: InProcessAirflow, recorded: Path
) -> None:
    home.tables.make("orders", settings={"backup.uri": str(home.folder / "copies")})
    assert run_shipped(home, "memwal_backup", {"dry_run": True}).state == "success"
    words = words_of(recorded)[-1]
    assert {"--verify", "--dry-run"} <= set(words)
    assert not any("copies" in word for word in words)
    assert {*home.load_dag("memwal_backup").params} == {"tables", "dry_run"}


def test_a_rescue_claims_when_it_is_told_to(home: InProcessAirflow, recorded: Path) -> None:
    home.tables.make("orders")
    home.tables.make("users")
    dag = home.load_dag("memwal_rescue")
    assert dag.allowed_run_types == {"manual"}
    with pytest.raises(ParamValidationError, match="tables"):
        dag.params.validate()  # nobody named a table
    everything = {"shards": ["0f", "a1"], "idle": "1h", "drop_torn": True}
    for conf, options in (
        ({}, ["--idle=10m", "--dry-run"]),
        ({"yes": True}, ["--idle=10m", "--yes", "--dry-run"]),
        (
            {"dry_run": False, "yes": True, **everything},
            ["--shard=0f", "--shard=a1", "--idle=1h", "--drop-torn", "--yes"],
        ),
    ):
        ran = run_shipped(home, "memwal_rescue", {"tables": ["users"], **conf})
        assert ran.state == "success", conf
        words = words_of(recorded)[-1]
        assert words[: len(options) + 1] == ["rescue", *options]
        assert words[words.index("--") :] == ["--", "users"]


def test_a_rescue_that_nobody_confirmed_is_refused(
    home: InProcessAirflow, capfd: pytest.CaptureFixture[str]
) -> None:
    home.tables.make("orders")
    ran = run_shipped(home, "memwal_rescue", {"tables": ["orders"], "dry_run": False})
    assert (ran.states[("rescue", 0)], ran.task("rescue", 0).try_number) == ("failed", 1)
    assert "has to be confirmed" in "".join(capfd.readouterr())


def test_a_name_that_looks_like_a_template_is_a_name(home: InProcessAirflow) -> None:
    odd = home.tables.make("{{ 7 * 6 }}", generations=1)
    orders = home.tables.make("orders", generations=1)
    ran = run_shipped(home, "memwal_merge")
    assert ran.state == "success", ran.states
    assert ran.xcom("plan") == ["{{ 7 * 6 }}", "orders"]
    assert odd.progress() == odd.flushed()
    assert orders.progress() == orders.flushed()
    for dag_id in ("memwal_snapshot", "memwal_backfill"):
        assert run_shipped(home, dag_id, {"tables": ["{{ 7 * 6 }}"]}).state == "success", dag_id


def test_the_form_takes_what_fits(home: InProcessAirflow) -> None:
    orders = home.tables.make("orders", generations=1)
    dag = home.load_dag("memwal_backfill")
    params = dag.params.__copy__()
    params.update({"tables": ["orders"], "shards": list(orders.shards), "until_generation": 3})
    assert params.validate()["jobs"] == ["merge", "index-catchup", "snapshot"]


def test_a_dag_of_ones_own_takes_one_line(home: InProcessAirflow) -> None:
    table = home.tables.make("orders", generations=2)
    ran = run_tasks(home, lambda: memwal_task_group("orders"))
    assert ran.state == "success"
    states = {task.removeprefix("memwal_orders."): s for (task, _), s in ran.states.items()}
    assert states["merge"] == states["index_catchup"] == states["snapshot"] == "success"
    assert states["announce_merged"] == "success"
    assert {name for name, _ in asset_events()} >= {
        "memwal merged orders",
        "memwal indexed orders",
    }
    table.check()
    again = run_tasks(home, lambda: memwal_task_group("orders", jobs=["merge", "index-catchup"]))
    assert again.state == "success"
    # Idle, not skipped: what comes after the group runs.
    assert again.states[("memwal_orders.merge", -1)] == "success"
    assert again.xcom("memwal_orders.merge")["outcome"] == "nothing_to_do"
    assert again.states[("memwal_orders.index_catchup", -1)] == "success"


def test_maintain_announces_each_of_its_jobs(home: InProcessAirflow) -> None:
    table = home.tables.make("orders", generations=2)
    ran = run_tasks(home, lambda: memwal_task_group("orders", jobs=["maintain", "verify"]))
    assert ran.state == "success", ran.states
    assert {name for name, _ in asset_events()} == {"memwal merged orders", "memwal indexed orders"}
    table.check()


def test_an_unknown_job_is_named(home: InProcessAirflow) -> None:
    with pytest.raises(ValueError, match="'vacuum'"):
        run_tasks(home, lambda: memwal_task_group("orders", jobs=["vacuum"]))


def test_the_plan_of_the_merges_keeps_to_the_configuration(home: InProcessAirflow) -> None:
    bag = DagBag(dag_folder=str(DAGS / "memwal_merge.py"))
    assert bag.dags["memwal_merge"].get_task("plan").configured_only is True


def test_without_tables_the_dags_are_there_all_the_same(home: InProcessAirflow) -> None:
    for dag_id in sorted(SHIPPED):
        assert home.load_dag(dag_id).dag_id == dag_id
    assert run_shipped(home, "memwal_merge").state == "success"


def test_a_wrong_configuration_names_the_key(home: InProcessAirflow) -> None:
    home.tables.set_head("[airflow]\nmerge_scedule = '@daily'\n")
    errors = DagBag(dag_folder=DAGS, bundle_path=DAGS).import_errors
    assert len(errors) == len(SHIPPED)
    assert all("unknown key 'airflow.merge_scedule'" in text for text in errors.values())


def test_schedules_come_from_the_configuration(home: InProcessAirflow) -> None:
    schedules = {"merge": "7 * * * *", "garbage": "9 1 * * *", "snapshot": ""}
    lines = "".join(f'{job}_schedule = "{text}"\n' for job, text in schedules.items())
    home.tables.set_head(HEAD + lines)
    home.tables.make("orders")
    merge = home.load_dag("memwal_merge").schedule
    assert merge.timetable.expression == "7 * * * *"
    assert list(merge.asset_condition.objects) == [build_asset("ingested", "orders")]
    snapshot = home.load_dag("memwal_snapshot").schedule
    assert list(snapshot.objects) == [build_asset("merged", "orders")]
    catchup = home.load_dag("memwal_index_catchup").schedule
    assert catchup.timetable.expression == "0 2 * * *"
    assert list(catchup.asset_condition.objects) == [build_asset("merged", "orders")]
    garbage = home.load_dag("memwal_garbage").schedule
    assert garbage.timetable.expression == "9 1 * * *"
    assert list(garbage.asset_condition.objects) == [build_asset("indexed", "orders")]


def test_events_that_piled_up_name_each_table_once() -> None:
    class Event:
        def __init__(self, extra: dict[str, Any] | None, table: str | None = None) -> None:
            self.extra = extra
            self.asset = build_asset("merged", table) if table else Asset("somebody_elses")

    piled = {
        "a": [Event({"table": "orders"}), Event({"table": "orders"}), Event(None)],
        "b": [Event({"table": "users"}), Event({})],
        "by hand": [Event({"from_rest_api": True}, "clicks")],
    }
    assert find_triggering_tables(piled) == ["orders", "users", "clicks"]
    assert find_triggering_tables(None) == []
