"""The page against Airflow's own users, permissions and database, in this process."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from memwal_airflow.page import actions
from memwal_airflow.page.actions import Backfill, Rejected
from memwal_airflow.plugin import MemWalPlugin, Page

from memwal.errors import EXIT_PARTIAL
from tests.airflow.airflow_server import InProcessAirflow
from tests.airflow.dag_runs import run_shipped
from tests.airflow.stand_in import StandIn
from tests.airflow.test_page_routes import ACTION, User

pytestmark = pytest.mark.integration

ADA = User("ada")
ORDER = Backfill(tables=["orders"], jobs=["merge"])


@pytest.fixture
def tokens(airflow_home: InProcessAirflow) -> dict[str, str]:
    """A JWT of each role."""
    from airflow.api_fastapi.app import init_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    manager = init_auth_manager()
    return {
        role: manager.generate_jwt(SimpleAuthManagerUser(username=role, role=role))
        for role in ("viewer", "user", "admin")
    }


@pytest.fixture(autouse=True)
def table(airflow_home: InProcessAirflow) -> None:
    airflow_home.tables.name("orders")


@pytest.fixture
def mounted(stand_in: StandIn) -> FastAPI:
    """The plugin's page, mounted the way Airflow does."""
    root = FastAPI()
    for entry in MemWalPlugin.fastapi_apps:
        root.mount(entry["url_prefix"], Page())
    return root


def client(app: FastAPI, token: str | None = None, *, bearer: bool = False) -> TestClient:
    cookies = {"_token": token} if token and not bearer else {}
    headers = {"Authorization": f"Bearer {token}"} if token and bearer else {}
    return TestClient(app, cookies=cookies, headers=headers, raise_server_exceptions=False)


def register(home: InProcessAirflow, *, paused: bool = False) -> None:
    """Put the shipped backfill DAG into the database."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    home.register(home.load_dag(actions.DAG_ID))
    with create_session() as session:
        model = session.get(DagModel, actions.DAG_ID)
        assert model is not None
        model.is_paused = paused
        model.is_stale = False


def runs() -> list[Any]:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        return list(session.scalars(select(DagRun)))


def test_airflows_tokens_open_the_page(mounted: FastAPI, tokens: dict[str, str]) -> None:
    paths = ("/memwal/", "/memwal/static/app.js", "/memwal/data/tables.json", "/memwal/docs")
    for path in paths:
        assert client(mounted).get(path).status_code == 401, path
        assert client(mounted, "forged").get(path).status_code in (401, 403), path
        for bearer in (False, True):
            answer = client(mounted, tokens["viewer"], bearer=bearer).get(path)
            assert answer.status_code == (404 if path.endswith("docs") else 200), path


def test_the_right_to_see_plugins_is_asked_for(
    mounted: FastAPI, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView

    asked = []

    def refuse(self: Any, *, access_view: AccessView, user: Any) -> bool:
        asked.append(access_view)
        return False

    monkeypatch.setattr(type(get_auth_manager()), "is_authorized_view", refuse)
    assert client(mounted, tokens["admin"]).get("/memwal/").status_code == 403
    assert asked == [AccessView.PLUGINS]


def test_roles_decide_who_may_start_a_backfill(
    mounted: FastAPI, tokens: dict[str, str], airflow_home: InProcessAirflow
) -> None:
    register(airflow_home)
    may = {
        role: client(mounted, token).get("/memwal/data/session.json").json()["may_trigger"]
        for role, token in tokens.items()
    }
    assert may == {"viewer": False, "user": True, "admin": True}
    body = ORDER.model_dump()
    post = client(mounted, tokens["viewer"]).post
    assert post("/memwal/actions/backfill", json=body, headers=ACTION).status_code == 403
    assert runs() == []


def test_a_backfill_starts_a_run_in_the_users_name(airflow_home: InProcessAirflow) -> None:
    register(airflow_home)
    assert actions.find_obstacle() is None
    order = ORDER.model_copy(update={"until_generation": 3})
    run_id = actions.trigger(order, ADA)
    [run] = runs()
    assert run.run_id == run_id
    assert run.dag_id == actions.DAG_ID
    assert run.triggering_user_name == "ada"
    assert run.triggered_by.value == "ui"
    assert run.state == "queued"
    assert run.conf == order.model_dump()
    assert [(e.owner, e.run_id) for e in audit()] == [("ada", run_id)]


def audit() -> list[Any]:
    from airflow.models.log import Log
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        return list(session.scalars(select(Log).where(Log.event == "trigger_dag_run")))


def test_every_field_of_the_form_is_a_parameter_of_the_dag(airflow_home: InProcessAirflow) -> None:
    dag = airflow_home.load_dag(actions.DAG_ID)
    assert set(Backfill.model_fields) == set(dag.params)
    # It is on unless somebody takes it off.
    assert dag.params["dry_run"] is Backfill.model_fields["dry_run"].default is True
    jobs = dag.params.get_param("jobs").schema["items"]["enum"]
    whole = Backfill(
        tables=["orders"],
        shards=["0fd630f1-f29d-4da9-953f-48f1a09f76b5"],
        jobs=jobs,
        generations_per_commit_max=1,
        bytes_per_commit_max=1,
        until_generation=1,
        concurrency=4,
        deadline="2h",
        engine="local",
        execute=True,
    )
    register(airflow_home)
    assert actions.trigger(whole, ADA)


# What whoever runs the command decides, and nobody who fills in a form.
NOT_IN_THE_FORM = {"all", "help"}


def test_every_option_of_the_command_is_a_field_of_the_form(warm_command: Path) -> None:
    told = subprocess.run([warm_command, "backfill", "--help"], capture_output=True, check=True)
    own = told.stdout.decode().partition("Shared options")[0]
    options = set(re.findall(r"^ +--([a-z-]+)", own, re.M)) - NOT_IN_THE_FORM
    fields = {name.replace("_", "-") for name in Backfill.model_fields}
    # The form has more: jobs that come after a backfill, garbage's own option, where it runs.
    assert options - {"shard"} | {"shards", "tables", "engine", "execute"} == fields


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"jobs": ["snapshot"], "until_generation": 3}, "until_generation needs merge"),
        ({"jobs": ["garbage"], "deadline": "2h"}, "deadline needs merge or index-catchup"),
        ({"execute": True}, "execute needs garbage"),
        ({"tables": ["orders", "events"], "shards": ["0f"]}, "shards needs a single table"),
    ],
)
def test_an_option_without_effect_is_refused(changes: dict[str, Any], why: str) -> None:
    body = {**ORDER.model_dump(), **changes}
    with pytest.raises(Rejected, match=why):
        actions.parse(Backfill, json.dumps(body).encode())


@pytest.mark.nightly
def test_a_run_is_followed_to_its_end(airflow_home: InProcessAirflow, stand_in: StandIn) -> None:
    airflow_home.tables.name("users")
    tables = [{"table": "orders", "outcome": "done"}, {"table": "users", "outcome": "failed"}]
    report = {"job": "backfill", "outcome": "partial", "tables": tables}
    stand_in.answer({"report": report, "code": EXIT_PARTIAL})
    conf = {"tables": ["orders", "users"], "jobs": ["merge"], "dry_run": False}
    ran = run_shipped(airflow_home, actions.DAG_ID, conf)
    found = actions.read_run(ran.run.run_id)
    assert (found["state"], found["ended"]) == ("failed", True)
    assert found["failed"] == ["backfill", "table.backfilled"]
    outcomes = {table["table"]: table["outcome"] for table in found["tables"]}
    assert outcomes == {"orders": "done", "users": "failed"}
    with pytest.raises(Rejected, match="no such run"):
        actions.read_run("manual__nowhere")


def test_parameters_that_the_dag_refuses_are_told(airflow_home: InProcessAirflow) -> None:
    register(airflow_home)
    odd = ORDER.model_copy(update={"shards": ["not a shard"]})
    with pytest.raises(Rejected, match="not a shard") as rejected:
        actions.trigger(odd, ADA)
    assert rejected.value.status == 400
    assert runs() == []
    assert audit() == []


def test_a_dag_that_is_paused_or_missing_is_told(airflow_home: InProcessAirflow) -> None:
    with pytest.raises(Rejected, match="there is no DAG memwal_backfill") as rejected:
        actions.trigger(ORDER, ADA)
    assert rejected.value.status == 404
    register(airflow_home, paused=True)
    with pytest.raises(Rejected, match="is paused; unpause it") as rejected:
        actions.trigger(ORDER, ADA)
    assert rejected.value.status == 409
    assert runs() == []


def test_the_navigation_entry_leads_to_the_mounted_page() -> None:
    [view] = MemWalPlugin.external_views
    [entry] = MemWalPlugin.fastapi_apps
    assert view["name"] == "MemWAL"
    assert view["destination"] == "nav"
    assert view["href"] == f"{entry['url_prefix']}/"


def test_the_page_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def make() -> Any:
        async def answer(scope: Any, receive: Any, send: Any) -> None:
            made[-1].append(scope)

        made.append([])
        return answer

    monkeypatch.setattr("memwal_airflow.page.app.create_airflow_app", make)
    page = Page()

    async def ask() -> None:
        await asyncio.gather(*(page({"n": n}, None, None) for n in range(3)))  # type: ignore[arg-type]

    asyncio.run(ask())
    assert [len(scopes) for scopes in made] == [3]
