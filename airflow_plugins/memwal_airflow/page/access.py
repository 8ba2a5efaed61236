"""Who may see the page. Nothing can be changed through it.

The guard protects the whole application rather than single routes: pages, data, static files, paths
that don't exist and routes that are yet to be written all need a user. Airflow mounts a plugin's
application as it is, without any guard of its own. It accepts its session cookie on any request, so
one from another site would count as the user's: the guard lets none through that may change
something.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from html import escape
from typing import Any
from urllib.parse import urlencode

from fastapi import HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

USER_KEY = "memwal.user"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
DAGS = tuple(
    f"memwal_{name}"
    for name in (
        *("merge", "index_catchup", "snapshot", "garbage", "compaction"),
        *("backfill", "verify", "backup", "rescue"),
    )
)
"""The shipped DAGs, in the order in which the page offers them."""

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'self'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "SAMEORIGIN",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}

_LOGIN = """<!doctype html><html lang="en"><title>MemWAL</title>
<p>You are not logged in. <a href="{}">Log in to Airflow</a></p></html>
"""


class AirflowAccess:
    """Airflow's own users and permissions, whichever auth manager is set up.

    Raises HTTPException 401 for a request without a user, 403 for one without a right.

    Viewing needs the right to see plugins, which Airflow's navigation checks too. Starting a DAG is
    left to Airflow's own API, which needs the right to create a run of it.
    """

    def __init__(self) -> None:
        from airflow.api_fastapi.auth.managers.models.resource_details import (
            AccessView,
            DagAccessEntity,
        )
        from airflow.api_fastapi.core_api import security

        self._security = security
        self.require_view: Callable[..., None] = security.requires_access_view(AccessView.PLUGINS)
        # These query the database.
        self._requirements: dict[str, Callable[..., None]] = {
            dag: security.requires_access_dag(
                method="POST", access_entity=DagAccessEntity.RUN, param_dag_id=dag
            )
            for dag in DAGS
        }

    def list_dags(self, request: Request, user: Any) -> Sequence[str]:
        """Return those of the shipped DAGs that the user may start."""
        found = []
        for dag, require in self._requirements.items():
            with suppress(HTTPException):
                require(request, user)
                found.append(dag)
        return found

    async def user(self, request: Request) -> Any:
        """The user of the bearer token, else of Airflow's session cookie."""
        bearer = await self._security.bearer_scheme(request)
        return await self._security.get_user(request, None, bearer)


class Guard:
    """Lets a request through to `app` if it only reads and its user may see the page."""

    def __init__(self, app: ASGIApp, access: AirflowAccess) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check and serve a request, as ASGI has it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        request = Request(scope, receive)
        guarded = _add_headers(send)
        try:
            user = await self._access.user(request)
            await run_in_threadpool(self._access.require_view, request, user)
            if request.method not in _SAFE_METHODS:
                raise HTTPException(405, "the page only reads")
        except HTTPException as error:
            await _refuse(request, error)(scope, receive, guarded)
            return
        scope[USER_KEY] = user
        await self._app(scope, receive, guarded)


def _refuse(request: Request, error: HTTPException) -> Response:
    """Return the answer to a request that lacks a user or a right.

    Somebody who opens the page itself without being logged in is shown how to log in.
    """
    opened = request.scope["path"].removeprefix(request.scope.get("root_path", "")) in ("", "/")
    if error.status_code == 401 and opened and "text/html" in request.headers.get("accept", ""):
        login = f"../api/v2/auth/login?{urlencode({'next': str(request.url)})}"
        return HTMLResponse(_LOGIN.format(escape(login)), 401, error.headers)
    return JSONResponse({"detail": error.detail}, error.status_code, error.headers)


def _add_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers[name] = value
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return sending
