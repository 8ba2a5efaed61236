"""What Airflow's plugin manager finds under the entry point `airflow.plugins`.

Every Airflow process imports this, so it stays light: the page's application is made when the API
server gets the first request for it.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from memwal_airflow.operators.page_links import PAGE_PREFIX, build_page_url

Scope = MutableMapping[str, Any]
Messages = Callable[..., Awaitable[Any]]


class Page:
    """The page as an ASGI application, made at the first request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._app: Callable[[Scope, Messages, Messages], Awaitable[None]] | None = None

    async def __call__(self, scope: Scope, receive: Messages, send: Messages) -> None:
        """Serve a request, as ASGI has it."""
        with self._lock:
            if self._app is None:
                from memwal_airflow.page.app import create_airflow_app

                self._app = create_airflow_app()
        await self._app(scope, receive, send)


class MemWalPlugin(AirflowPlugin):
    """The page and its entry in the navigation.

    Links from tasks to the page are registered in provider.py; Airflow imports triggers by path.
    """

    name = "memwal"

    fastapi_apps = [{"app": Page(), "url_prefix": PAGE_PREFIX, "name": "MemWAL"}]
    external_views = [
        {"name": "MemWAL", "href": build_page_url(), "destination": "nav", "url_route": "memwal"}
    ]
