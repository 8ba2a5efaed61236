"""The shipped DAGs: their forms, what a run's conf makes of a job, and runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import Asset
from airflow.sdk.exceptions import ParamValidationError
from memwal_airflow.assets.events import build_asset, find_triggering_tables
from memwal_airflow.task_groups import memwal_task_group

from tests.airflow.airflow_server import DAGS, InProcessAirflow
from tests.airflow.dag_runs import asset_events, run_shipped, run_tasks
from tests.airflow.stand_in import StandIn

pytestmark = pytest.mark.integration

HEAD = """\
[defaults]
engine = "local"
due_generations_min = 1

[airflow]
deferrable = false
retries = 1
retry_delay_seconds = 0.01
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


@pytest.fixture
def home(airflow_home: InProcessAirflow) -> InProcessAirflow:
    airflow_home.tables.set_head(HEAD)
    return airflow_home


@pytest.fixture
def named(home: InProcessAirflow) -> InProcessAirflow:
    """The file names two tables, of which nothing is there."""
    home.tables.name("orders", "users")
    return home


# ---- files and forms


def test_a_file_of_one_line_a_dag_has_them_all(tmp_path: Path, home: InProcessAirflow) -> None:
    """Those that the provider's wheel brings; more than once, as one process may read files."""
    lines = [f"from memwal_airflow.dags.{name} import dag as {name}\n" for name in sorted(SHIPPED)]
    (tmp_path / "memwal.py").write_text("".join(lines))
    for _ in range(2):
        bag = DagBag(dag_folder=tmp_path)
        assert not bag.import_errors
        assert {*bag.dags} == SHIPPED
    assert {Path(dag.fileloc).name for dag in bag.dags.values()} == {"memwal.py"}


def test_every_dag_says_whose_it_is_and_what_it_does(named: InProcessAirflow) -> None:
    """The task that lists the tables has tries, too: events that started a run come once."""
    named.tables.set_head(HEAD + 'owner = "lake"\npool = "lake"\n')
    found = load_all()
    assert found.keys() == SHIPPED
    for dag_id, dag in found.items():
        job = dag_id.removeprefix("memwal_").replace("_", "-")
        assert "tables" in dag.task_ids
        tasks = {(task.owner, task.retries, task.pool) for task in dag.tasks}
        assert tasks == {("lake", 1, "lake")}
        assert dag.tags == {"memwal", f"memwal:{job}"}
        assert dag.doc_md.startswith(dag.description[:20])
        assert "\n" not in dag.description
        assert all(task.doc_md for task in dag.tasks)
        # A run that waits for one table holds up no other.
        runs_max = {"merge": 3, "index-catchup": 3, "snapshot": 3, "garbage": 3}
        assert job not in runs_max or dag.max_active_runs == 3
        # A range of dates is not to be had.
        allowed = {kind.value for kind in dag.allowed_run_types}
        others = {"scheduled", "asset_triggered", "operator_triggered"}
        assert allowed == {"manual"} if job == "rescue" else others | {"manual"} <= allowed
        assert "backfill" not in allowed


def load_all() -> dict[str, Any]:
    bag = DagBag(dag_folder=DAGS, bundle_path=DAGS)
    assert bag.import_errors == {}
    return dict(bag.dags)


def test_every_form_refuses_other_tables(named: InProcessAirflow) -> None:
    """As Airflow does when it makes a run: the schemas travel to the API server."""
    for dag_id, dag in load_all().items():
        params = dag.params
        params.__copy__().update({"tables": ["orders"]})
        params.__copy__().update({"tables": [str(named.tables.folder / "orders")]})
        for conf in (
            {"tables": ["orders", "--storage-option=aws_endpoint=http://elsewhere"]},
            {"tables": [str(named.folder)]},
            {"tables": "orders"},
            {"dry_run": "yes"},
        ):
            if conf.keys() <= params.keys():
                with pytest.raises(ParamValidationError):
                    params.__copy__().update(conf)
        assert ("dry_run" in params) == (dag_id != "memwal_verify")
    named.tables.set_head(HEAD + "any_address = true\n")
    params = named.load_dag("memwal_merge").params
    params.__copy__().update({"tables": [str(named.folder)]})
    with pytest.raises(ParamValidationError):
        params.__copy__().update({"tables": ["--master=spark://elsewhere"]})


def test_the_forms_refuse_what_does_not_fit(named: InProcessAirflow) -> None:
    orders = {"tables": ["orders"]}
    unfit: dict[str, list[dict[str, Any]]] = {
        "backfill": [
            {"tables": []},
            {**orders, "jobs": ["drop"]},
            {**orders, "shards": ["../../x"]},
            {**orders, "shards": ["-" * 36]},
            {**orders, "until_generation": 0},
            {**orders, "concurrency": 5},  # more than tasks_in_flight_max
        ],
        "garbage": [
            {"retention": "soon"},
            {"grace": "-1h"},
            {"execute": "yes"},
            {"wal": 1},
        ],
    }
    for job, confs in unfit.items():
        params = named.load_dag(f"memwal_{job}").params
        for conf in confs:
            with pytest.raises(ParamValidationError, match="Invalid input"):
                params.__copy__().update(conf)


def test_the_form_takes_what_fits(named: InProcessAirflow) -> None:
    params = named.load_dag("memwal_backfill").params.__copy__()
    shard = "0fd630f1-f29d-4da9-953f-48f1a09f76b5"
    params.update({"tables": ["orders"], "shards": [shard], "until_generation": 3})
    assert params.validate()["jobs"] == ["merge", "index-catchup", "snapshot"]
    with pytest.raises(ParamValidationError, match="tables"):
        named.load_dag("memwal_rescue").params.validate()  # nobody named a table


def test_a_wrong_configuration_names_the_key(home: InProcessAirflow) -> None:
    home.tables.set_head("[airflow]\nmerge_scedule = '@daily'\n")
    errors = DagBag(dag_folder=DAGS, bundle_path=DAGS).import_errors
    assert len(errors) == len(SHIPPED)
    assert all("unknown key 'airflow.merge_scedule'" in text for text in errors.values())


def test_schedules_come_from_the_configuration(home: InProcessAirflow) -> None:
    schedules = {"merge": "7 * * * *", "garbage": "9 1 * * *", "snapshot": ""}
    lines = "".join(f'{job}_schedule = "{text}"\n' for job, text in schedules.items())
    home.tables.set_head(HEAD + lines)
    assert home.load_dag("memwal_merge").schedule.expression == "7 * * * *"
    assert home.load_dag("memwal_backup").schedule is None  # off until a table has a place
    home.tables.name("orders")
    home.tables.name("users", **{"backup.uri": "s3://copies/users"})
    found = {
        job: home.load_dag(f"memwal_{job}").schedule for job in ("merge", "garbage", "snapshot")
    }
    catchup = home.load_dag("memwal_index_catchup").schedule
    assert home.load_dag("memwal_backup").schedule.expression == "0 1 * * *"
    clocks = found["merge"].timetable, catchup.timetable, found["garbage"].timetable
    assert [clock.expression for clock in clocks] == ["7 * * * *", "0 2 * * *", "9 1 * * *"]
    for schedule, step in (
        (found["merge"].asset_condition, "ingested"),
        (found["snapshot"], "merged"),
        (catchup.asset_condition, "merged"),
        (found["garbage"].asset_condition, "indexed"),
    ):
        assert list(schedule.objects) == [build_asset(step, name) for name in ("orders", "users")]


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


# ---- what a run's conf makes of a job


OWN = {"execute": False, "retention": "9d", "grace": "2h", "wal": False}
EVERYTHING = {"shards": ["0f", "a1"], "idle": "1h", "drop_torn": True}


@pytest.mark.parametrize(
    ("job", "conf", "expected"),
    [
        ("verify", {}, []),
        ("snapshot", {"dry_run": True}, ["--dry-run"]),
        ("merge", {"dry_run": True}, ["--dry-run"]),
        ("garbage", OWN, ["--retention=9d", "--grace=2h", "--no-wal"]),
        # It is read again, and takes no place from a run.
        ("backup", {"dry_run": True}, ["--verify", "--dry-run"]),
        ("rescue", {}, ["--idle=10m", "--dry-run"]),
        ("rescue", {"yes": True}, ["--idle=10m", "--yes", "--dry-run"]),
        (
            "rescue",
            {"dry_run": False, "yes": True, **EVERYTHING},
            ["--shard=0f", "--shard=a1", "--idle=1h", "--drop-torn", "--yes"],
        ),
    ],
)
def test_a_job_does_what_the_form_says(
    named: InProcessAirflow, job: str, conf: dict[str, Any], expected: list[str]
) -> None:
    dag = named.load_dag(f"memwal_{job}")
    dag.params.update({"tables": ["users"], **conf})
    task = dag.get_task(job)
    task.tables = "users"  # what the task is mapped over
    task.render_template_fields({"params": dag.params.dump(), "task": task})
    assert sorted(task.list_options()) == sorted(expected)


# ---- runs


def test_a_misspelt_key_fails_the_run_before_any_job(
    named: InProcessAirflow, stand_in: StandIn, capfd: pytest.CaptureFixture[str]
) -> None:
    ran = run_shipped(named, "memwal_snapshot", {"tables": ["orders"], "tabels": []})
    assert (ran.state, ran.states[("tables", -1)]) == ("failed", "failed")
    assert "unknown key 'tabels' in the run's conf (is 'tables' meant?)" in capfd.readouterr().out
    assert stand_in.words == []


@pytest.mark.nightly
def test_without_tables_the_dags_are_there_all_the_same(
    home: InProcessAirflow, stand_in: StandIn
) -> None:
    assert load_all().keys() == SHIPPED
    ran = run_shipped(home, "memwal_merge")
    assert (ran.state, ran.states[("merge", -1)]) == ("success", "skipped")
    assert stand_in.words == []


@pytest.mark.nightly
def test_the_tables_of_a_run_are_those_of_its_conf_or_all(
    named: InProcessAirflow, stand_in: StandIn
) -> None:
    """A name that looks like a template is a name."""
    odd = "{{ 7 * 6 }}"
    named.tables.name(odd, **{"backup.uri": "s3://copies/odd"})
    assert run_shipped(named, "memwal_snapshot").state == "success"
    assert sorted(stand_in.asked) == [("orders",), ("users",), (odd,)]
    stand_in.answer({})
    # Of a backup's, those that have a place.
    assert run_shipped(named, "memwal_backup").xcom("tables") == [odd]
    ran = run_shipped(named, "memwal_merge", {"tables": [odd, "users"]})
    assert (ran.state, ran.xcom("plan")) == ("success", [odd, "users"])
    assert sorted(stand_in.asked) == [("users",), (odd,), (odd,)]


@pytest.mark.nightly
def test_a_rescue_that_nobody_confirmed_is_refused(
    named: InProcessAirflow, stand_in: StandIn, capfd: pytest.CaptureFixture[str]
) -> None:
    ran = run_shipped(named, "memwal_rescue", {"tables": ["orders"], "dry_run": False})
    assert (ran.states[("rescue", 0)], ran.task("rescue", 0).try_number) == ("failed", 1)
    assert "has to be confirmed" in "".join(capfd.readouterr())
    assert stand_in.words == []


@pytest.mark.e2e
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


@pytest.mark.nightly
def test_progress_of_a_try_that_died_is_told_by_the_next(
    home: InProcessAirflow, stand_in: StandIn
) -> None:
    orders = home.tables.make("orders", generations=2)
    # The first merge commits, and dies before it can say so.
    dies, goes_on = f'{home.command} "$@"; kill -9 $$', f'exec {home.command} "$@"'
    stand_in.answer({"program": dies}, {"program": goes_on})
    ran = run_shipped(home, "memwal_merge", {"tables": ["orders"]})
    assert orders.progress() == orders.flushed()
    assert (ran.task("merge", 0).try_number, ran.states[("merge", 0)]) == (2, "success")
    assert [name for name, _ in asset_events()] == ["memwal merged orders"]


@pytest.mark.nightly
def test_catchup_snapshot_garbage_and_compaction_by_hand_work_on_every_table(
    home: InProcessAirflow,
) -> None:
    home.tables.set_head(HEAD.replace("[airflow]", 'retention = "7d"\n[airflow]'))
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


@pytest.mark.nightly
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
    }
    dry = run_shipped(home, "memwal_backfill", {**conf, "execute": True})
    assert (dry.state, orders.progress(), asset_events()) == ("success", {}, [])
    ran = run_shipped(home, "memwal_backfill", {**conf, "dry_run": False})
    assert ran.state == "success"
    assert orders.progress() == {orders.shards[0]: 2}
    assert users.progress() == {}
    states = {task: state for (task, _), state in ran.states.items()}
    assert states["backfill"] == states["table.snapshot"] == "success"
    assert states["table.compaction"] == states["table.garbage"] == "skipped"
    assert [name for name, _ in asset_events()] == ["memwal merged orders"]
    assert [name for name, _ in asset_events(of_tables=True)] == [f"file://{orders.uri}"]
    (told,) = ran.xcom("backfill")["tables"]
    assert [(job["job"], job["outcome"]) for job in told["jobs"]] == [("merge", "done")]
    orders.check(merged=False)
    # Without merge and catch-up it does the rest.
    rest = {"tables": ["orders"], "jobs": ["snapshot"], "dry_run": False}
    ran = run_shipped(home, "memwal_backfill", rest)
    assert (ran.state, ran.states[("backfill", -1)]) == ("success", "skipped")


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_verify_names_the_broken_table_and_starts_nothing(
    home: InProcessAirflow, capfd: pytest.CaptureFixture[str]
) -> None:
    home.tables.make("orders", generations=1)
    home.tables.make("broken", generations=1).break_shard()
    ran = run_shipped(home, "memwal_verify")
    assert ran.states == {
        ("tables", -1): "success",
        ("verify", 0): "success",
        ("verify", 1): "failed",
    }
    broken = ran.task("verify", 1)
    assert (broken.try_number, broken.rendered_map_index) == (1, "broken")
    said = "".join(capfd.readouterr())
    assert "memwal verify: exit code 8: broken: invariant 10, shard manifests: " in said
    # What Airflow's page folds up, once a table: the command, and what the job itself says.
    assert said.count("::group::The job's command") == said.count("::group::The job's log") == 2
    assert said.count("::endgroup::") >= 4
    assert asset_events() == []


@pytest.mark.nightly
def test_a_backup_goes_where_the_file_says_and_is_announced(home: InProcessAirflow) -> None:
    place = home.tables.folder / "copies"
    home.tables.make("plain")
    home.tables.make("orders", generations=1, settings={"backup.uri": str(place)})
    ran = run_shipped(home, "memwal_backup")
    (summary,) = ran.xcom("backup", map_index=0)["tables"]
    assert (ran.state, summary["outcome"]) == ("success", "done")
    assert len(list((place / "_maintenance/backups").glob("*.pb"))) == 1
    assert [name for name, _ in asset_events()] == ["memwal backed-up orders"]
    named = run_shipped(home, "memwal_backup", {"tables": ["plain"]})
    assert named.states[("backup", 0)] == "failed"


@pytest.mark.nightly
def test_a_dag_of_ones_own_takes_one_line_and_maintain_announces_each_of_its_jobs(
    home: InProcessAirflow,
) -> None:
    table = home.tables.make("orders", generations=2)
    ran = run_tasks(home, lambda: memwal_task_group("orders"))
    assert ran.state == "success"
    states = {task.removeprefix("memwal_orders."): s for (task, _), s in ran.states.items()}
    assert states["merge"] == states["index_catchup"] == states["snapshot"] == "success"
    assert states["announce_merged"] == "success"
    steps = {"memwal merged orders", "memwal indexed orders"}
    assert {name for name, _ in asset_events()} >= steps
    table.check()
    again = run_tasks(home, lambda: memwal_task_group("orders", jobs=["merge", "index-catchup"]))
    assert again.state == "success"
    # Idle, not skipped: what comes after the group runs.
    assert again.states[("memwal_orders.merge", -1)] == "success"
    assert again.xcom("memwal_orders.merge")["outcome"] == "nothing_to_do"
    assert again.states[("memwal_orders.index_catchup", -1)] == "success"
    ((name, _),) = asset_events(of_tables=True)
    assert name == f"file://{table.uri}"
    table.fill(1)
    chained = run_tasks(home, lambda: memwal_task_group("orders", jobs=["maintain", "verify"]))
    assert chained.state == "success"
    told = [name for name, _ in asset_events()]
    assert sorted(told) == sorted(2 * ["memwal merged orders", "memwal indexed orders"])
    table.check()
