"""The page in a headless Chromium: over answers from memory, or wherever a test goes."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from memwal_airflow.page.app import create_app
from memwal_airflow.page.feed import Feed, FeedLimits
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.airflow import page_samples as samples

ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAIT_MS = 60_000
WIDTHS = {"wide": 1280, "narrow": 400}


@contextmanager
def launched() -> Iterator[Browser]:
    """CHROMIUM, or what is on PATH."""
    program = shutil.which(os.environ.get("CHROMIUM") or "chromium")
    assert program is not None, "no Chromium here; scripts/chromium.sh brings one"
    # On a machine that runs an Airflow besides.
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, **options: Any) -> Iterator[Page]:
    """A window of its own. What our page does wrong in it fails the test."""
    known = {"viewport": {"width": WIDTHS["wide"], "height": 900}, "color_scheme": "light"}
    context = browser.new_context(**{**known, **options})
    context.set_default_timeout(WAIT_MS)
    page, faults = context.new_page(), list[str]()
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on(
        "console",
        lambda message: (
            message.type == "error"
            and "/memwal/" in message.location.get("url", "")
            # The browser itself logs every answer of 4xx.
            and "Failed to load resource" not in message.text
            and faults.append(message.text)
        ),
    )
    yield page
    context.close()
    assert faults == []


def snap(page: Page, name: str) -> None:
    """See that nothing is cut off, wide and narrow; a picture of each, light and dark, for people
    to look at, if MEMWAL_SCREENSHOTS names a folder.
    """
    folder = os.environ.get("MEMWAL_SCREENSHOTS")
    for size, width in reversed(WIDTHS.items()):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function("w => document.documentElement.clientWidth <= w", arg=width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        for scheme in ("dark", "light") if folder else ():
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            page.screenshot(path=f"{folder}/{name}-{size}-{scheme}.png", full_page=True)


class Doorman:
    """Lets everybody in as an admin, until told not to."""

    open = True
    dags = ("memwal_merge", "memwal_backfill")

    async def user(self, request: Request) -> samples.User:
        if not self.open:
            raise HTTPException(401, "Token Expired")
        return samples.User("admin")

    def require_view(self, request: Request, user: Any) -> None:
        return

    def list_dags(self, request: Request, user: Any) -> Sequence[str]:
        return self.dags


class Running:
    """The page on a port of its own, beside what it asks of Airflow's API.

    `with Running(folder) as running:`; `started` are the runs that somebody started.
    """

    def __init__(self, folder: Path, refresh_seconds: float = 1) -> None:
        self.doorman = Doorman()
        self.answers = samples.Answers(folder)
        self.started: list[tuple[str, Any]] = []
        clock, runner = samples.StandingClock(), self.answers
        limits = FeedLimits(
            refresh_seconds=refresh_seconds, seconds_max=4, refresh_pause_seconds=0.5
        )
        self.feed = Feed(runner.order, runner, clock, limits)  # type: ignore[arg-type]
        root = FastAPI()
        root.mount("/memwal", create_app(feed=self.feed, access=self.doorman))
        root.get("/api/v2/dags/{dag}/details")(self.describe)
        root.post("/api/v2/dags/{dag}/dagRuns")(self.start)
        self._server = uvicorn.Server(uvicorn.Config(root, log_level="warning", lifespan="off"))
        listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/memwal/"
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listening]}, daemon=True
        )

    def describe(self, dag: str) -> samples.Json:
        values = {"tables": [], "dry_run": False, "until_generation": None}
        params = {name: {"value": v, "description": f"About {name}"} for name, v in values.items()}
        return {"params": params, "is_paused": dag == "memwal_backfill"}

    def start(self, dag: str, order: samples.Json) -> samples.Json:
        if order["conf"].get("odd"):
            raise HTTPException(400, "odd is not a field")
        self.started.append((dag, order["conf"]))
        return {"dag_run_id": "manual__1"}

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the server; doing it twice is harmless."""
        self.answers.close()
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(20)
        self.feed.close()
