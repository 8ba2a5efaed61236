"""The page's web application, which serves from memory; slow work happens in the feed."""

from __future__ import annotations

import atexit
import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from time import monotonic
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response

from memwal_airflow.page import actions
from memwal_airflow.page.access import USER_KEY, Access, AirflowAccess, Guard
from memwal_airflow.page.details import Details, show_garbage
from memwal_airflow.page.feed import Clock, Feed, FeedLimits
from memwal_airflow.page.health import HealthLimits
from memwal_airflow.page.history import RunQuery
from memwal_airflow.page.plots import iso
from memwal_airflow.page.source import read_airflow_order
from memwal_airflow.page.view_model import ShardQuery, show_overview, show_table
from memwal_airflow.processes.process import Runner

_KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True, kw_only=True)
class StaticFile:
    """A file of the page, held in memory."""

    content: bytes
    kind: str
    etag: str


@dataclass(frozen=True, kw_only=True)
class Actions:
    """The actions of the page: the functions of the same names in `actions`."""

    find_obstacle: Callable[[], actions.Rejected | None] = actions.find_obstacle
    trigger: Callable[[actions.Backfill, Any], str] = actions.trigger
    read_run: Callable[[str], Mapping[str, Any]] = actions.read_run


def make_clock() -> Clock:
    """The machine's clock."""
    return Clock(now=lambda: datetime.now(UTC), monotonic=monotonic)


def create_airflow_app() -> FastAPI:
    """The application as Airflow mounts it."""
    from airflow.configuration import conf

    from memwal_airflow.settings import read_settings

    settings = read_settings()
    clock = make_clock()
    limits = FeedLimits(
        refresh_seconds=settings.page_refresh_seconds, seconds_max=settings.page_timeout_seconds
    )
    feed = Feed(read_airflow_order, Runner(clock.monotonic), clock, limits)
    details = Details(read_airflow_order, Runner(clock.monotonic), clock)
    atexit.register(feed.close)
    atexit.register(details.close)
    return create_app(
        feed=feed,
        details=details,
        access=AirflowAccess(actions.DAG_ID),
        actions_allowed=Actions(),
        clock=clock,
        base_url=conf.get("api", "base_url", fallback="") or "",
    )


def create_app(
    *,
    feed: Feed,
    details: Details,
    access: Access,
    actions_allowed: Actions,
    clock: Clock,
    base_url: str = "",
    health_limits: HealthLimits | None = None,
) -> FastAPI:
    """Build the application, with everything in it behind the guard."""
    app = FastAPI(title="MemWAL", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, access=access, base_url=base_url)
    _serve_files(app)
    root = base_url.partition("://")[2].partition("/")[2].strip("/")
    root = f"/{root}" if root else ""
    _serve_data(app, feed, details, clock, health_limits or HealthLimits(), root)
    _serve_actions(app, feed, access, actions_allowed, root)
    return app


def read_static_files() -> dict[str, StaticFile]:
    """Read every file of the page, by name."""
    found = {}
    for file in files("memwal_airflow.page").joinpath("static").iterdir():
        kind = _KINDS.get(file.name.rpartition(".")[2])
        if kind is not None and file.is_file():
            content = file.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
            found[file.name] = StaticFile(content=content, kind=kind, etag=etag)
    return found


def _serve_files(app: FastAPI) -> None:
    found = read_static_files()

    def answer(request: Request, name: str) -> Response:
        file = found.get(name)
        if file is None:
            raise HTTPException(404, "no such file")
        headers = {"etag": file.etag, "cache-control": "private, no-cache"}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.kind, headers=headers)

    @app.get("/")
    async def page(request: Request) -> Response:
        return answer(request, "index.html")

    @app.get("/static/{name}")
    async def static(request: Request, name: str) -> Response:
        return answer(request, name)


def _serve_data(
    app: FastAPI, feed: Feed, details: Details, clock: Clock, limits: HealthLimits, root: str
) -> None:
    @app.get("/data/tables.json")
    def tables() -> JSONResponse:
        return JSONResponse(show_overview(feed.seen(), clock.now(), limits))

    @app.get("/data/table.json")
    async def table(
        name: str,
        text: str = Query("", max_length=200),
        only: str = Query("all", max_length=20),
        sort: str = Query("pending", max_length=20),
        offset: int = Query(0, ge=0),
        limit: int = Query(50, ge=1, le=200),
        run_job: str = Query("", max_length=40),
        run_outcome: str = Query("", max_length=20),
        run_id: str = Query("", max_length=200),
        run_offset: int = Query(0, ge=0),
    ) -> JSONResponse:
        seen = feed.seen()
        look = feed.look(name)
        if look is None:
            if seen.planned_at is not None:
                raise HTTPException(404, "no such table in the configuration")
            # The tables are not known yet.
            waiting = {"now": iso(clock.now()), "waiting": True, "problem": seen.problem}
            return JSONResponse(waiting, status_code=202)
        query = ShardQuery(text=text, only=only, sort=sort, offset=offset, limit=limit)
        runs = RunQuery(job=run_job, outcome=run_outcome, run_id=run_id, offset=run_offset)
        ask = details.look if runs.needs_older(look.runs) else details.recall
        found = show_table(
            look, clock.now(), limits, query, root, runs, ask("runs", name, look.uri)
        )
        return JSONResponse({**found, "problem": seen.problem})

    @app.get("/data/garbage.json")
    async def garbage(name: str) -> JSONResponse:
        look = feed.look(name)
        if look is None:
            raise HTTPException(404, "no such table in the configuration")
        return JSONResponse(show_garbage(details.look("garbage", name, look.uri), clock.now()))


def _serve_actions(app: FastAPI, feed: Feed, access: Access, allowed: Actions, root: str) -> None:
    @app.get("/data/session.json")
    def session(request: Request) -> JSONResponse:
        """Say who the user is and what they may do; separate, as it queries Airflow's database."""
        user = request.scope[USER_KEY]
        obstacle = None
        try:
            access.require_trigger(request, user)
            may_trigger = True
            obstacle = allowed.find_obstacle()
        except HTTPException:
            may_trigger = False
        return JSONResponse(
            {
                "user": user.get_name(),
                "may_trigger": may_trigger,
                "obstacle": str(obstacle) if obstacle else None,
                "dag_id": actions.DAG_ID,
                "airflow_root": root,
                "refresh_seconds": feed.limits.refresh_seconds,
            }
        )

    @app.get("/data/backfill.json")
    def backfill_run(request: Request, run_id: str = Query(max_length=250)) -> JSONResponse:
        """Say how a backfill stands, to those who may start one."""
        access.require_trigger(request, request.scope[USER_KEY])
        try:
            return JSONResponse(dict(allowed.read_run(run_id)))
        except actions.Rejected as rejected:
            return JSONResponse({"detail": str(rejected)}, rejected.status)

    @app.post("/actions/refresh")
    async def refresh(request: Request) -> JSONResponse:
        return await _answer(lambda body: _refresh(feed, body), request)

    @app.post("/actions/backfill")
    async def backfill(request: Request) -> JSONResponse:
        user = request.scope[USER_KEY]
        await run_in_threadpool(access.require_trigger, request, user)

        def start(body: bytes) -> JSONResponse:
            order = actions.parse(actions.Backfill, body)
            _check_tables(feed, order.tables)
            run_id = allowed.trigger(order, user)
            path = f"{root}/dags/{actions.DAG_ID}/runs/{quote(run_id, safe='')}"
            return JSONResponse({"run_id": run_id, "path": path}, status_code=201)

        return await _answer(start, request)


def _check_tables(feed: Feed, names: Collection[str]) -> None:
    """Raise Rejected (400) for a table that the configuration does not name."""
    unknown = sorted(set(names) - {look.name for look in feed.seen().looks})
    if unknown:
        raise actions.Rejected(400, f"not in the configuration: {', '.join(unknown)}")


def _refresh(feed: Feed, body: bytes) -> JSONResponse:
    refresh = actions.parse(actions.Refresh, body)
    if refresh.table is not None:
        _check_tables(feed, [refresh.table])
    wait = feed.ask_refresh(refresh.table)
    if wait > 0:
        headers = {"retry-after": str(int(wait) + 1)}
        return JSONResponse({"detail": "asked a moment ago"}, 429, headers)
    return JSONResponse({"detail": "looking"}, status_code=202)


async def _answer(act: Callable[[bytes], JSONResponse], request: Request) -> JSONResponse:
    """Read a bounded body and act on it in a thread; if it is rejected, the answer says why."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > actions.BODY_BYTES_MAX:
            raise HTTPException(413, "the body is too large")
    try:
        return await run_in_threadpool(act, bytes(body))
    except actions.Rejected as rejected:
        return JSONResponse({"detail": str(rejected)}, rejected.status)
