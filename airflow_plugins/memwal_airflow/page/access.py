"""Who may see the page, and which requests may change something.

The guard protects the whole application rather than single routes: pages, data, static files, paths
that don't exist and routes that are yet to be written all need a user. Airflow mounts a plugin's
application as it is, without any guard of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit

from fastapi import HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# A browser sends an unusual header to another site only if that site agrees to it first (a CORS
# preflight), and this one never does.
ACTION_HEADER = "x-memwal-action"
USER_KEY = "memwal.user"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

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


class Access(Protocol):
    """How users are recognised, and what they may do. Raises HTTPException 401 or 403."""

    async def user(self, request: Request) -> Any:
        """The logged-in user of a request."""

    def require_view(self, request: Request, user: Any) -> None:
        """Check that the user may see the page."""

    def require_trigger(self, request: Request, user: Any) -> None:
        """Check that the user may start the backfill DAG."""


class AirflowAccess:
    """Airflow's own users and permissions, whichever auth manager is set up.

    Viewing needs the right to see plugins, which Airflow's navigation checks too. Starting a
    backfill needs the right to create a run of that DAG, as in Airflow's own API.
    """

    def __init__(self, dag_id: str) -> None:
        from airflow.api_fastapi.auth.managers.models.resource_details import (
            AccessView,
            DagAccessEntity,
        )
        from airflow.api_fastapi.core_api import security

        self._security = security
        self.require_view: Callable[..., None] = security.requires_access_view(AccessView.PLUGINS)
        # Queries the database.
        self.require_trigger: Callable[..., None] = security.requires_access_dag(
            method="POST", access_entity=DagAccessEntity.RUN, param_dag_id=dag_id
        )

    async def user(self, request: Request) -> Any:
        """The user of the bearer token, else of Airflow's session cookie."""
        bearer = await self._security.bearer_scheme(request)
        return await self._security.get_user(request, None, bearer)


class Guard:
    """Lets a request through to `app` if its user may see the page, and refuses it otherwise.

    Requests that may change something must also come from the page itself.
    """

    def __init__(self, app: ASGIApp, access: Access, base_url: str) -> None:
        self._app = app
        self._access = access
        self._base_url = base_url

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
                refuse_cross_site(request.headers, list_origins(request, self._base_url))
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


def list_origins(request: Request, base_url: str) -> frozenset[str]:
    """Return this server's `scheme://host:port`, only that of `[api] base_url` if it is set.

    Otherwise the request's own host counts, with both schemes, since a proxy that terminates TLS
    may not say so. That is weaker: a request can claim any host.
    """
    public = urlsplit(base_url.lower())
    if public.scheme and public.netloc:
        # As a browser writes it: without the scheme's default port.
        port = {"http": ":80", "https": ":443"}.get(public.scheme, "")
        return frozenset({f"{public.scheme}://{public.netloc.removesuffix(port)}"})
    host = request.headers.get("host", "").lower()
    return frozenset({f"http://{host}", f"https://{host}"} if host else ())


def refuse_cross_site(headers: Headers, origins: frozenset[str]) -> None:
    """Raise HTTPException unless a request that changes something comes from the page itself.

    Airflow's session cookie is accepted on any request, so the cookie alone proves nothing. All of
    these checks have to pass; a request that does not show where it comes from is refused.
    """
    if headers.get(ACTION_HEADER) != "1":
        raise HTTPException(403, f"refused: no {ACTION_HEADER} header")
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, "refused: the body has to be application/json")
    site = headers.get("sec-fetch-site")
    origin = headers.get("origin")
    if site is not None and site != "same-origin":
        raise HTTPException(403, f"refused: a {site} request")
    if origin is not None and origin.lower() not in origins:
        raise HTTPException(
            403, "refused: the request comes from another origin than [api] base_url, or its host"
        )
    if site is None and origin is None:
        raise HTTPException(403, "refused: neither Origin nor Sec-Fetch-Site is given")
