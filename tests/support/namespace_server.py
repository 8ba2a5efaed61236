"""A REST namespace, by what the Lance namespace specification says of listing and describing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "Bearer not-to-be-shown"
_NAMESPACE_NOT_FOUND, _TABLE_NOT_FOUND, _UNAUTHENTICATED, _UNAVAILABLE = 1, 4, 16, 17
_PAGE_TABLES = 2


@dataclass(kw_only=True)
class NamespaceServer:
    """`with NamespaceServer(tables={"sales.orders": uri}) as server:`

    With `seconds`, it vends credentials that last so long: the session token is the time when they
    expire. `asked` are the ids of what was described. One that `is_away` answers with an error.
    """

    tables: dict[str, str] = field(default_factory=dict)
    storage_options: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None
    token_option: str = "aws_session_token"
    managed: bool = False
    asked: list[str] = field(default_factory=list)
    is_away: bool = False

    def __enter__(self) -> Self:
        namespace = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self._answer()

            def _answer(self) -> None:
                status, body = namespace.answer(self.path, self.headers.get("Authorization"))
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.uri = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, target: str, authorization: str | None) -> tuple[int, dict[str, Any]]:
        """The status and body for a request."""
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        delimiter = query.get("delimiter", "$")
        _, _, kind, named, *rest = parts.path.split("/")
        name = unquote(named)
        table_id = ".".join(part for part in name.split(delimiter) if part)
        if self.is_away:
            return _refuse(503, _UNAVAILABLE, "away")
        if authorization != TOKEN:
            return _refuse(401, _UNAUTHENTICATED, f"{authorization} is not allowed")
        if (kind, rest) == ("table", ["describe"]):
            return self._describe(table_id)
        if (kind, rest) == ("namespace", ["table", "list"]):
            return self._list(table_id, query)
        return _refuse(404, 0, target)

    def _describe(self, table_id: str) -> tuple[int, dict[str, Any]]:
        self.asked.append(table_id)
        if table_id not in self.tables:
            return _refuse(404, _TABLE_NOT_FOUND, f"Table not found: {table_id}")
        options = dict(self.storage_options)
        if self.seconds is not None:
            expires = str(int((time.time() + self.seconds) * 1000))
            options |= {self.token_option: expires, "expires_at_millis": expires}
            options |= {"refresh_offset_millis": str(int(self.seconds * 300))}
        found: dict[str, Any] = {"location": self.tables[table_id], "storage_options": options}
        return 200, found | ({"managed_versioning": True} if self.managed else {})

    def _list(self, parent: str, query: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        below = [name.rpartition(".") for name in sorted(self.tables)]
        names = [name for schema, _, name in below if schema == parent]
        if not names:
            return _refuse(404, _NAMESPACE_NOT_FOUND, f"Namespace not found: {parent}")
        first = int(query.get("page_token", 0))
        page: dict[str, Any] = {"tables": names[first : first + _PAGE_TABLES]}
        if first + _PAGE_TABLES < len(names):
            page["page_token"] = str(first + _PAGE_TABLES)
        return 200, page


def _refuse(status: int, code: int, text: str) -> tuple[int, dict[str, Any]]:
    return status, {"error": text, "code": code, "detail": text}
