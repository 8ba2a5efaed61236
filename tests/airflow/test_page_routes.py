"""The page's routes: who gets in, and what they answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import PlainTextResponse
from fastapi.staticfiles import StaticFiles
from fastapi.testclient import TestClient
from memwal_airflow import page
from memwal_airflow.page.access import AirflowAccess
from memwal_airflow.page.app import create_app
from memwal_airflow.page.feed import Feed, FeedLimits
from memwal_airflow.page.source import Order

from tests.airflow import page_samples as samples
from tests.airflow.page_samples import User

STATIC = Path(page.__file__).parent / "static"
FILES = {file.name: file.read_text() for file in STATIC.iterdir()}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class CookieAccess(AirflowAccess):
    """The cookie `_token` names the user: outsider may nothing, viewer may look, admin may all."""

    def __init__(self) -> None:
        pass

    async def user(self, request: Request) -> User:
        name = request.cookies.get("_token")
        if name is None:
            raise HTTPException(401, "Not authenticated")
        return User(name)

    def require_view(self, request: Request, user: User) -> None:
        if user.name not in ("viewer", "admin"):
            raise HTTPException(403, "Forbidden")

    def list_dags(self, request: Request, user: User) -> Sequence[str]:
        return ["memwal_merge"] if user.name == "admin" else []


@dataclass
class Site:
    """The page over answers from memory, and clients of it."""

    folder: Path
    gate: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.answers = samples.Answers(self.folder)
        self.answers.name_tables(orders="s3://u:p@lake/orders", events="s3://lake/e")
        shards = [samples.shard(n, pending=n) for n in range(6)]
        self.answers.put(samples.status("orders", shards), samples.history(5))
        self.answers.put(samples.status("events"))
        clock = samples.StandingClock()
        self.gate.set()

        def order() -> Order:
            self.gate.wait(30)
            return self.answers.order()

        self.feed = Feed(order, self.answers, clock, FeedLimits())  # type: ignore[arg-type]
        self.app = create_app(feed=self.feed, access=CookieAccess())

    def client(self, user: str | None = None) -> TestClient:
        cookies = {} if user is None else {"_token": user}
        return TestClient(self.app, cookies=cookies, raise_server_exceptions=False)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    made.feed.seen()
    samples.settle()
    yield made
    made.feed.close()
    samples.settle()


def paths(app: FastAPI) -> set[str]:
    """Every path of the application that could be asked for, mounted ones too."""
    found = {getattr(route, "path", None) for route in app.routes}
    assert None not in found
    return {path or "/" for path in found}


def everything(app: FastAPI) -> list[str]:
    odd = [
        "/docs",
        "/redoc",
        "/openapi.json",
        "/nowhere",
        "/static",
        "/static/",
        "/static/../app.py",
    ]
    return sorted({*paths(app), *odd, *(f"/static/{name}" for name in FILES)})


def test_the_routes_are_these(site: Site) -> None:
    data = {f"/data/{name}.json" for name in ["tables", "table", "session"]}
    assert paths(site.app) == {"/", "/static"} | data


@pytest.mark.parametrize(("user", "status"), [(None, 401), ("outsider", 403)])
def test_every_route_needs_a_user_who_may_look(site: Site, user: str | None, status: int) -> None:
    client = site.client(user)
    for path in everything(site.app):
        for method in METHODS:
            answer = client.request(method, path)
            assert answer.status_code == status, f"{method} {path}"
            assert "orders" not in answer.text


def test_nothing_can_be_changed_through_it(site: Site) -> None:
    """Another site's request may carry the user's cookie."""

    @site.app.post("/later")
    def later() -> PlainTextResponse:
        return PlainTextResponse("changed")

    for path in (*everything(site.app), "/later"):
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            answer = site.client("admin").request(method, path)
            assert answer.status_code == 405, f"{method} {path}"


def test_whoever_opens_the_page_logged_out_is_led_to_the_login(site: Site) -> None:
    asks = {"accept": "text/html,*/*"}
    answer = site.client().get("/", headers=asks)
    assert answer.status_code == 401
    assert 'href="../api/v2/auth/login?next=http%3A%2F%2Ftestserver%2F"' in answer.text
    for path in ("/data/tables.json", "/static/app.js"):
        assert site.client().get(path, headers=asks).json() == {"detail": "Not authenticated"}


def test_a_route_that_comes_later_is_guarded_too(site: Site, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "secret.txt").write_text("sesame")

    @site.app.get("/later")
    def later() -> PlainTextResponse:
        return PlainTextResponse("sesame")

    inner = FastAPI()
    inner.get("/x")(later)
    site.app.mount("/inner", inner)
    site.app.mount("/files", StaticFiles(directory=tmp_path / "files"))
    for path in ("/later", "/inner/x", "/inner/docs", "/inner/openapi.json", "/files/secret.txt"):
        assert site.client().get(path).status_code == 401, path
        assert site.client("outsider").get(path).status_code == 403, path
    assert site.client("viewer").get("/files/secret.txt").text == "sesame"


def test_websockets_are_refused(site: Site) -> None:
    with pytest.raises(Exception) as refused, site.client("admin").websocket_connect("/"):
        pass
    assert getattr(refused.value, "code", None) == 1008


def test_every_answer_carries_the_security_headers(site: Site) -> None:
    for user in (None, "outsider", "viewer"):
        for path in everything(site.app):
            headers = site.client(user).get(path).headers
            policy = headers["content-security-policy"]
            assert "default-src 'self'" in policy
            assert "frame-ancestors 'self'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            if not path.startswith("/static") and path != "/":
                assert headers["cache-control"] == "no-store", path


def test_the_page_and_its_files(site: Site) -> None:
    client = site.client("viewer")
    opened = client.get("/")
    assert opened.headers["content-type"] == "text/html; charset=utf-8"
    assert "<script>" not in opened.text
    assert " style=" not in opened.text
    assert "//" not in opened.text.replace("<!doctype", "")
    script = client.get("/static/app.js")
    assert script.headers["content-type"].startswith("text/javascript")
    again = client.get("/static/app.js", headers={"if-none-match": script.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/static/app.py").status_code == 404
    assert client.get("/static/..%2fapp.py").status_code == 404
    assert client.get("/docs").status_code == 404


def test_every_file_that_the_page_names_is_shipped() -> None:
    assert {"index.html", "page.css", "app.js", "theme.js", "uplot.min.js"} <= set(FILES)
    for name, text in FILES.items():
        for part in text.split('"'):
            if part.startswith("./") and part.endswith(".js"):
                assert part[2:] in FILES, f"{name} imports {part}"
            if part.startswith("static/"):
                assert part.removeprefix("static/") in FILES
        assert "innerHTML" not in text
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in text.replace("https://github.com/leeoniya/uPlot", "")


def test_data_come_from_memory(site: Site) -> None:
    client = site.client("viewer")
    asked = len(site.answers.calls)
    for _ in range(20):
        assert client.get("/data/tables.json").status_code == 200
    assert len(site.answers.calls) == asked
    lines = client.get("/data/tables.json").json()["tables"]
    assert [line["name"] for line in lines] == ["orders", "events"]
    assert "u:p@" not in client.get("/data/tables.json").text


def test_one_table(site: Site) -> None:
    client = site.client("viewer")
    found = client.get("/data/table.json", params={"name": "orders"})
    assert len(found.json()["shards"]) == 6
    assert len(found.json()["runs"]) == 10
    assert client.get("/data/table.json", params={"name": "nope"}).status_code == 404
    assert client.get("/data/table.json").status_code == 422
    # What has not changed is not sent again.
    headers = {"if-none-match": found.headers["etag"]}
    again = client.get("/data/table.json", params={"name": "orders"}, headers=headers)
    assert (again.status_code, again.content) == (304, b"")


def test_before_the_first_look_a_table_is_not_missing(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.gate.clear()
    client = site.client("viewer")
    first = client.get("/data/table.json", params={"name": "orders"})
    assert first.status_code == 202
    assert first.json()["waiting"] is True
    assert client.get("/data/tables.json").json()["tables"] == []
    site.gate.set()
    samples.settle()
    assert client.get("/data/table.json", params={"name": "orders"}).status_code == 200
    assert client.get("/data/table.json", params={"name": "nope"}).status_code == 404
    site.feed.close()


def test_the_session_says_what_the_user_may_start(site: Site) -> None:
    for user, dags in (("viewer", []), ("admin", ["memwal_merge"])):
        found = site.client(user).get("/data/session.json").json()
        assert (found["user"], found["dags"]) == (user, dags)


def test_a_viewer_may_ask_for_a_refresh_but_not_all_the_time(site: Site) -> None:
    client = site.client("viewer")
    for path in ("/data/tables.json?refresh=true", "/data/table.json?name=orders&refresh=true"):
        assert client.get(path).status_code == 200
        samples.settle()
        assert len(site.answers.asked()) == 2
