"""The page against Airflow's own users, permissions and database, in this process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from memwal_airflow.page.access import DAGS
from memwal_airflow.plugin import MemWalPlugin, Page

from tests.airflow import airflow_server
from tests.airflow.airflow_server import InProcessAirflow
from tests.airflow.stand_in import StandIn

pytestmark = pytest.mark.integration


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


def test_roles_decide_who_may_start_which_dags(mounted: FastAPI, tokens: dict[str, str]) -> None:
    may = {
        role: client(mounted, token).get("/memwal/data/session.json").json()["dags"]
        for role, token in tokens.items()
    }
    assert may == {"viewer": [], "user": list(DAGS), "admin": list(DAGS)}


def test_the_page_offers_the_shipped_dags() -> None:
    assert set(DAGS) == {file.stem for file in airflow_server.DAGS.glob("*.py")}


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
