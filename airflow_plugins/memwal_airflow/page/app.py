"""The page's web application, which serves from memory; slow work happens in the feed."""

from __future__ import annotations

import atexit
import hashlib
import json
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles

from memwal.clock import SystemClock
from memwal_airflow.page.access import USER_KEY, AirflowAccess, Guard
from memwal_airflow.page.answers import STATES, Json, iso, show_line, show_table
from memwal_airflow.page.feed import Feed, FeedLimits, Seen
from memwal_airflow.page.source import read_airflow_order
from memwal_airflow.processes.process import Runner


class _Static(StaticFiles):
    """The page's own files, which browsers keep and ask about."""

    def file_response(self, *args: Any, **how: Any) -> Response:
        response = super().file_response(*args, **how)
        response.headers["cache-control"] = "private, no-cache"
        return response


def create_airflow_app() -> FastAPI:
    """The application as Airflow mounts it."""
    from memwal_airflow.settings import read_settings

    settings, clock = read_settings(), SystemClock()
    limits = FeedLimits(
        refresh_seconds=settings.page_refresh_seconds, seconds_max=settings.page_timeout_seconds
    )
    feed = Feed(read_airflow_order, Runner(clock.monotonic_seconds), clock, limits)
    atexit.register(feed.close)
    return create_app(feed=feed, access=AirflowAccess())


def create_app(*, feed: Feed, access: AirflowAccess) -> FastAPI:
    """Build the application, with everything in it behind the guard."""
    app = FastAPI(title="MemWAL", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(GZipMiddleware)
    app.add_middleware(Guard, access=access)
    static = _Static(packages=[("memwal_airflow.page", "static")])
    app.mount("/static", static)

    @app.get("/")
    async def page(request: Request) -> Response:
        return await static.get_response("index.html", request.scope)

    @app.get("/data/tables.json")
    def tables(request: Request, refresh: bool = False) -> Response:
        if refresh:
            feed.refresh()
        return _answer(request, show_overview(feed.seen()))

    @app.get("/data/table.json")
    def table(request: Request, name: str, refresh: bool = False) -> Response:
        if refresh:
            feed.refresh()
        seen = feed.seen()
        look = next((look for look in seen.looks if look.name == name), None)
        if look is not None:
            return _answer(request, {**show_table(look), "page_problem": seen.problem})
        if seen.planned_at is not None:
            raise HTTPException(404, "no such table in the configuration")
        # The tables are not known yet.
        return JSONResponse({"waiting": True, "page_problem": seen.problem}, 202)

    @app.get("/data/session.json")
    def session(request: Request) -> JSONResponse:
        """Say what the user may start; separate, as it queries Airflow's database."""
        user = request.scope[USER_KEY]
        dags = list(access.list_dags(request, user))
        seconds = feed.limits.refresh_seconds
        return JSONResponse({"user": user.get_name(), "dags": dags, "refresh_seconds": seconds})

    return app


def show_overview(seen: Seen) -> Json:
    """Show all tables, and how many there are in each state."""
    lines = [show_line(look) for look in seen.looks]
    return {
        "page_problem": seen.problem,
        "missing": vars(seen.missing) if seen.missing else None,
        "planned_at": iso(seen.planned_at),
        "looking": seen.busy,
        "left_out": seen.tables_left_out,
        "counts": {state: sum(line["state"] == state for line in lines) for state in STATES},
        "tables": lines,
    }


def _answer(request: Request, document: Any) -> Response:
    """Answer with a document, or with 304 if whoever asks has it already."""
    content = json.dumps(document).encode()
    tag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
    headers = {"etag": tag, "cache-control": "no-store"}
    # A proxy that compresses may have made it a weak one.
    if request.headers.get("if-none-match", "").removeprefix("W/") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="application/json", headers=headers)
