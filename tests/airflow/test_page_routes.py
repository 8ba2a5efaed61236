"""The page's routes: who gets in, what comes from elsewhere, what actions answer."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import PlainTextResponse
from fastapi.staticfiles import StaticFiles
from fastapi.testclient import TestClient
from memwal_airflow.page.actions import Backfill, Rejected
from memwal_airflow.page.app import Actions, create_app, read_static_files
from memwal_airflow.page.details import Details
from memwal_airflow.page.feed import Clock, Feed, FeedLimits
from memwal_airflow.page.source import Order

from tests.airflow import page_samples as samples

BASE = "http://testserver"
ACTION = {
    "x-memwal-action": "1",
    "content-type": "application/json",
    "origin": BASE,
    "sec-fetch-site": "same-origin",
}
BACKFILL = {"tables": ["orders"], "jobs": ["merge"], "dry_run": True}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@dataclass(frozen=True)
class User:
    name: str

    def get_name(self) -> str:
        return self.name


class CookieAccess:
    """The cookie `_token` names the user: outsider may nothing, viewer may look, admin may all."""

    async def user(self, request: Request) -> User:
        name = request.cookies.get("_token")
        if name is None:
            raise HTTPException(401, "Not authenticated")
        return User(name)

    def require_view(self, request: Request, user: User) -> None:
        if user.name not in ("viewer", "admin"):
            raise HTTPException(403, "Forbidden")

    def require_trigger(self, request: Request, user: User) -> None:
        if user.name != "admin":
            raise HTTPException(403, "Forbidden")


@dataclass
class Site:
    """The page over answers from memory, and clients of it."""

    folder: Path
    base_url: str = ""
    started: list[tuple[Backfill, str]] = field(default_factory=list)
    obstacle: Rejected | None = None
    rejection: Rejected | None = None
    gate: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.answers = samples.Answers(self.folder)
        self.answers.name_tables(orders="s3://u:p@lake/orders", events="s3://lake/e")
        shards = [samples.shard(n, pending=n) for n in range(6)]
        self.answers.put(samples.status("orders", shards), samples.history(5))
        self.answers.put(samples.status("events"))
        clock = Clock(now=lambda: samples.NOW, monotonic=time.monotonic)
        self.gate.set()

        def order() -> Order:
            self.gate.wait(30)
            return self.answers.order()

        self.feed = Feed(order, self.answers, clock, FeedLimits())  # type: ignore[arg-type]
        self.details = Details(order, self.answers, clock)  # type: ignore[arg-type]
        self.app = create_app(
            feed=self.feed,
            details=self.details,
            access=CookieAccess(),
            actions_allowed=Actions(
                find_obstacle=lambda: self.obstacle, trigger=self.trigger, read_run=self.read_run
            ),
            clock=clock,
            base_url=self.base_url,
        )

    def trigger(self, order: Backfill, user: User) -> str:
        if self.rejection is not None:
            raise self.rejection
        self.started.append((order, user.get_name()))
        return "manual__2026-11-21T12:00:00+00:00"

    def read_run(self, run_id: str) -> dict[str, Any]:
        if run_id != "manual__1":
            raise Rejected(404, "there is no such run any more")
        return {"run_id": run_id, "state": "success", "ended": True, "failed": [], "tables": []}

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
    found = set()
    for route in app.routes:
        path = getattr(route, "path", None)
        assert path is not None, f"what is {route}?"
        found.add(path.replace("{name}", "app.js").replace("{path:path}", "x"))
    return found


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
    return sorted({*paths(app), *odd, *(f"/static/{name}" for name in read_static_files())})


def test_the_routes_are_these(site: Site) -> None:
    data = {f"/data/{name}.json" for name in ["tables", "table", "garbage", "backfill", "session"]}
    actions = {"/actions/refresh", "/actions/backfill"}
    assert paths(site.app) == {"/", "/static/app.js"} | data | actions


@pytest.mark.parametrize(("user", "status"), [(None, 401), ("outsider", 403)])
def test_every_route_needs_a_user_who_may_look(site: Site, user: str | None, status: int) -> None:
    client = site.client(user)
    for path in everything(site.app):
        for method in METHODS:
            answer = client.request(method, path, headers=ACTION)
            assert answer.status_code == status, f"{method} {path}"
            assert "orders" not in answer.text
    assert site.started == []


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
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<script>" not in page.text
    assert " style=" not in page.text
    assert "//" not in page.text.replace("<!doctype", "")
    script = client.get("/static/app.js")
    assert script.headers["content-type"].startswith("text/javascript")
    again = client.get("/static/app.js", headers={"if-none-match": script.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/static/app.py").status_code == 404
    assert client.get("/static/..%2fapp.py").status_code == 404
    assert client.get("/docs").status_code == 404


def test_every_file_that_the_page_names_is_shipped() -> None:
    files = read_static_files()
    assert {"index.html", "page.css", "app.js", "theme.js"} <= set(files)
    for name, file in files.items():
        text = file.content.decode()
        for part in text.split('"'):
            if part.startswith("./") and part.endswith(".js"):
                assert part[2:] in files, f"{name} imports {part}"
        assert "innerHTML" not in text
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in text


def test_data_come_from_memory(site: Site) -> None:
    client = site.client("viewer")
    asked = len(site.answers.calls)
    for _ in range(20):
        assert client.get("/data/tables.json").status_code == 200
    assert len(site.answers.calls) == asked
    lines = client.get("/data/tables.json").json()["tables"]
    assert [line["name"] for line in lines] == ["orders", "events"]
    assert "u:p@" not in client.get("/data/tables.json").text


def test_one_table_with_a_page_of_its_shards(site: Site) -> None:
    client = site.client("viewer")
    found = client.get("/data/table.json", params={"name": "orders", "limit": 2, "offset": 2})
    page = found.json()["shard_page"]
    assert (page["total"], page["offset"], len(page["shards"])) == (6, 2, 2)
    assert client.get("/data/table.json", params={"name": "nope"}).status_code == 404
    assert client.get("/data/table.json").status_code == 422
    odd = client.get("/data/table.json", params={"name": "orders", "limit": 100_000})
    assert odd.status_code == 422


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


def test_the_session_says_what_the_user_may_do(site: Site) -> None:
    viewer = site.client("viewer").get("/data/session.json").json()
    assert (viewer["user"], viewer["may_trigger"]) == ("viewer", False)
    site.obstacle = Rejected(409, "paused")
    admin = site.client("admin").get("/data/session.json").json()
    assert (admin["may_trigger"], admin["obstacle"]) == (True, "paused")


def test_an_admin_starts_a_backfill_and_a_viewer_may_not(site: Site) -> None:
    order = {**BACKFILL, "shards": ["s"], "until_generation": 7, "deadline": "2h"}
    refused = site.client("viewer").post("/actions/backfill", json=order, headers=ACTION)
    assert (refused.status_code, site.started) == (403, [])
    answer = site.client("admin").post("/actions/backfill", json=order, headers=ACTION)
    assert answer.status_code == 201, answer.text
    assert answer.json() == {
        "run_id": "manual__2026-11-21T12:00:00+00:00",
        "path": "/dags/memwal_backfill/runs/manual__2026-11-21T12%3A00%3A00%2B00%3A00",
    }
    [(started, name)] = site.started
    assert name == "admin"
    assert started.model_dump()["until_generation"] == 7
    assert started.deadline == "2h"


def test_what_became_of_a_backfill_is_told_to_those_who_may_start_one(site: Site) -> None:
    path = "/data/backfill.json?run_id=manual__1"
    assert site.client("admin").get(path).json()["state"] == "success"
    assert site.client("viewer").get(path).status_code == 403
    gone = site.client("admin").get("/data/backfill.json?run_id=manual__2")
    assert (gone.status_code, gone.json()["detail"]) == (404, "there is no such run any more")


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"x-memwal-action": None}, 403),
        ({"x-memwal-action": "yes"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": None}, 415),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "none"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "https://evil.example", "sec-fetch-site": None}, 403),
        ({"origin": "http://testserver.evil.example", "sec-fetch-site": None}, 403),
        ({"origin": "http://testserver:8080", "sec-fetch-site": None}, 403),
        ({"origin": "null", "sec-fetch-site": None}, 403),
        ({"origin": None, "sec-fetch-site": None}, 403),
    ],
)
def test_requests_from_elsewhere_are_refused(
    site: Site, changes: dict[str, str | None], status: int
) -> None:
    merged: dict[str, str | None] = {**ACTION, **changes}
    headers = {name: value for name, value in merged.items() if value is not None}
    for path, body in (("/actions/backfill", BACKFILL), ("/actions/refresh", {}), ("/nowhere", {})):
        answer = site.client("admin").post(path, content=json.dumps(body), headers=headers)
        assert answer.status_code == status, answer.text
        assert answer.json()["detail"].startswith("refused: ")
    assert site.started == []


def test_either_sign_of_the_own_site_is_enough(site: Site) -> None:
    client = site.client("admin")
    for missing in ("origin", "sec-fetch-site"):
        headers = {name: value for name, value in ACTION.items() if name != missing}
        answer = client.post("/actions/backfill", json=BACKFILL, headers=headers)
        assert answer.status_code == 201, missing


@pytest.mark.parametrize(
    "base_url", ["https://airflow.example/team", "https://AIRFLOW.example:443"]
)
def test_behind_a_proxy_the_public_address_is_our_own_and_a_forged_one_is_not(
    tmp_path: Path, base_url: str
) -> None:
    """A name that was made to lead here, as whoever owns it may: host and origin agree."""
    site = Site(tmp_path, base_url=base_url)
    site.feed.seen()
    samples.settle()
    client = site.client("admin")
    for own, status in (("evil.example", 403), ("airflow.example", 201)):
        headers = {**ACTION, "host": own, "origin": f"https://{own}"}
        answer = client.post("/actions/backfill", json=BACKFILL, headers=headers)
        assert answer.status_code == status, answer.text
    assert len(site.started) == 1
    root = "/team" if base_url.endswith("/team") else ""
    assert answer.json()["path"].startswith(f"{root}/dags/memwal_backfill/runs/")
    assert client.get("/data/session.json").json()["airflow_root"] == root
    # The proxy's name is not that of the host.
    headers = {**ACTION, "origin": "https://airflow.example"}
    assert client.post("/actions/backfill", json=BACKFILL, headers=headers).status_code == 201
    site.feed.close()


def test_actions_are_post_only(site: Site) -> None:
    for path in ("/actions/backfill", "/actions/refresh"):
        for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE"):
            answer = site.client("admin").request(method, path, headers=ACTION)
            assert answer.status_code == 405, method


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("", "tables: Field required"),
        ("[]", "object"),
        ("{", "JSON"),
        (json.dumps({**BACKFILL, "tables": []}), "tables"),
        (json.dumps({**BACKFILL, "tables": ["nope"]}), "not in the configuration: nope"),
        (json.dumps({**BACKFILL, "jobs": ["drop"]}), "jobs.0"),
        (json.dumps({**BACKFILL, "jobs": []}), "jobs"),
        (json.dumps({**BACKFILL, "until_generation": "7"}), "until_generation"),
        (json.dumps({**BACKFILL, "generations_per_commit_max": 0}), "generations_per_commit_max"),
        (json.dumps({**BACKFILL, "force": True}), "force"),
    ],
)
def test_a_bad_order_is_told_what_is_wrong(site: Site, body: str, says: str) -> None:
    answer = site.client("admin").post("/actions/backfill", content=body, headers=ACTION)
    assert answer.status_code == 400
    assert says in answer.json()["detail"]
    assert site.started == []


def test_what_airflow_rejects_is_told(site: Site) -> None:
    site.rejection = Rejected(409, "the DAG memwal_backfill is paused; unpause it")
    answer = site.client("admin").post("/actions/backfill", json=BACKFILL, headers=ACTION)
    assert answer.status_code == 409
    assert answer.json()["detail"] == "the DAG memwal_backfill is paused; unpause it"


def test_a_body_is_bounded(site: Site) -> None:
    body = b'{"tables": ["' + b"x" * (300 << 10) + b'"]}'
    answer = site.client("admin").post("/actions/backfill", content=body, headers=ACTION)
    assert answer.status_code == 413


def test_a_viewer_may_ask_for_a_refresh_but_not_all_the_time(site: Site) -> None:
    client = site.client("viewer")
    before = len(site.answers.calls)
    first = client.post("/actions/refresh", json={"table": "orders"}, headers=ACTION)
    assert first.status_code == 202, first.text
    again = client.post("/actions/refresh", json={}, headers=ACTION)
    assert again.status_code == 429
    assert 1 <= int(again.headers["retry-after"]) <= 6
    samples.settle()
    assert ("status", ("orders",)) in site.answers.calls[before:]
    wrong: Any = client.post("/actions/refresh", json={"table": "nope"}, headers=ACTION)
    assert wrong.status_code == 400
