"""The page in a real browser over what memwal could say, without an Airflow around it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from memwal_airflow.hooks.command import JobsEnvironment
from memwal_airflow.page.actions import Rejected
from memwal_airflow.page.app import Actions, create_app, make_clock
from memwal_airflow.page.details import Details
from memwal_airflow.page.feed import Feed, FeedLimits
from memwal_airflow.page.source import read_order
from memwal_airflow.processes.process import Runner
from playwright.sync_api import Browser, Page, expect

from tests.airflow import page_samples as samples
from tests.airflow.page_browser import launched
from tests.airflow.test_page_routes import User

pytestmark = pytest.mark.browser

SCRIPT = "<img src=x onerror=\"window.caught = 'yes'\"><script>window.caught = 'yes'</script>"
TO = "\N{EN DASH}"
TABLES = ("orders", "clicks", "refunds", "inventory", "hangs-a", "users", SCRIPT)


class Doorman:
    """Lets everybody in as an admin, until told not to."""

    open = True

    async def user(self, request: Request) -> User:
        if not self.open:
            raise HTTPException(401, "Token Expired")
        return User("admin")

    def require_view(self, request: Request, user: Any) -> None:
        return

    def require_trigger(self, request: Request, user: Any) -> None:
        return


class Running:
    """The page on a port of its own, over the stand-in command."""

    def __init__(self, folder: Path, feed: Any = None) -> None:
        self.folder = folder
        self.doorman = Doorman()
        self.rejection: Rejected | None = None
        self.run: dict[str, Any] = {"state": "queued", "ended": False}
        config = folder / "memwal.toml"
        command = samples.make_command(folder)
        # JSON's strings are TOML's too.
        names = map(json.dumps, TABLES)
        config.write_text("\n".join(f'[tables.{name}]\nuri = "s3://lake/x"\n' for name in names))
        jobs = JobsEnvironment(command=str(command), config_file=str(config))
        clock = make_clock()
        limits = FeedLimits(refresh_seconds=2, seconds_max=4, refresh_pause_seconds_min=0.5)
        runner = Runner(clock.monotonic)
        self.feed = feed or Feed(lambda: read_order(lambda: jobs), runner, clock, limits)
        self.details = Details(lambda: read_order(lambda: jobs), Runner(clock.monotonic), clock)
        page = create_app(
            feed=self.feed,
            details=self.details,
            access=self.doorman,
            actions_allowed=Actions(
                find_obstacle=lambda: None, trigger=self.trigger, read_run=lambda run_id: self.run
            ),
            clock=clock,
        )
        root = FastAPI()
        root.mount("/memwal", page)
        self.server = uvicorn.Server(uvicorn.Config(root, log_level="warning"))
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}/memwal/"
        self.thread = threading.Thread(
            target=self.server.run, kwargs={"sockets": [self.listening]}, daemon=True
        )

    def trigger(self, order: Any, user: Any) -> str:
        if self.rejection is not None:
            raise self.rejection
        return "manual__1"

    def stop(self) -> None:
        self.server.should_exit = True
        self.server.force_exit = True
        self.thread.join(20)
        self.feed.close()
        self.details.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as found:
        yield found


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(samples, "NOW", make_clock().now())
    made = Running(tmp_path)
    thousand = [samples.shard(n, pending=n % 5) for n in range(1000)]
    broken = samples.shard(1, outcome="failed", error=f"bad magic {SCRIPT}")
    samples.put(tmp_path, samples.status("orders", lease=samples.lease()), samples.history())
    samples.put(tmp_path, samples.status("clicks", thousand), samples.history(60))
    samples.put(
        tmp_path, {"table": "refunds", "outcome": "failed", "error": f"credentials {SCRIPT}"}
    )
    samples.put(
        tmp_path,
        samples.status("inventory", [], indexes=[], storage=None, reclaimable=None, snapshot=None),
    )
    samples.put(
        tmp_path,
        samples.status("users", [samples.shard(0), broken], outcome="partial", error="x"),
        [samples.run("merge", 3, outcome="failed", exit_code=8, error=SCRIPT)],
    )
    made.thread.start()
    yield made
    made.stop()


@pytest.fixture
def page(browser: Browser, running: Running) -> Iterator[Page]:
    """A window. What the page did wrong in it fails the test."""
    expect.set_options(timeout=60_000)
    context = browser.new_context(viewport={"width": 1360, "height": 900})
    context.set_default_timeout(60_000)
    opened = context.new_page()
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on(
        "console",
        lambda message: (
            message.type == "error"
            and "Failed to load resource" not in message.text
            and faults.append(message.text)
        ),
    )
    yield opened
    context.close()
    assert faults == []


def rows_shown(page: Page) -> dict[str, Any]:
    """Per table its state, its word and its badge, as they stood at one moment."""
    return dict(
        page.evaluate(
            """() => Object.fromEntries(
                [...document.querySelectorAll("tr[data-table]")].map((row) => {
                    const badge = row.querySelector(".state");
                    const [word, shape] = [badge.innerText.trim(), badge.querySelector("svg")];
                    const seen = {state: row.dataset.state, word, shape: shape.innerHTML};
                    return [row.dataset.table, seen];
                }))"""
        )
    )


def rows_once(page: Page, states: dict[str, str], seconds: float = 60) -> dict[str, Any]:
    """What is shown as soon as those tables have those states; the last seen after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        found = rows_shown(page)
        if states.items() <= {name: row["state"] for name, row in found.items()}.items():
            return found
        if time.monotonic() > deadline:
            return found
        page.wait_for_timeout(100)


def test_every_state_has_a_shape_and_a_word_and_the_worst_is_first(
    page: Page, running: Running
) -> None:
    page.goto(running.url)
    expect(page.locator("tr[data-table='hangs-a']")).to_contain_text("no answer within 4 s")
    states = {
        "refunds": "broken",
        "users": "broken",
        "hangs-a": "unreachable",
        "clicks": "due",
        "orders": "held",
        "inventory": "ok",
    }
    found = rows_once(page, states)
    order = {name: row["state"] for name, row in found.items()}
    assert states.items() <= order.items()
    ranks = ["broken", "unreachable", "unknown", "lagging", "due", "held", "ok"]
    assert list(order.values()) == sorted(order.values(), key=ranks.index)
    assert all(row["word"].lower() == row["state"] for row in found.values())
    shapes = {row["word"]: row["shape"] for row in found.values()}
    assert len(set(shapes.values())) == len(shapes) == 6


def test_what_memwal_says_is_never_markup(page: Page, running: Running) -> None:
    page.goto(running.url)
    expect(page.locator("tr[data-table='refunds'] .reason")).to_contain_text("<img src=x")
    row = page.locator("tr[data-table]", has_text="<script>").filter(has_text="memwal said nothing")
    expect(row).to_be_visible()
    row.get_by_role("link").click()
    expect(page.locator(".titleline h2")).to_have_text(SCRIPT)
    page.goto(f"{running.url}#/table/users")
    expect(page.locator("tr.bad")).to_contain_text("bad magic <img")
    expect(page.locator("tr[data-run] .error")).to_have_text(SCRIPT)
    page.goto(f"{running.url}#/table/{quote(SCRIPT, safe='')}")
    expect(page.locator(".titleline h2")).to_have_text(SCRIPT)
    assert page.locator("main img, main script").count() == 0
    assert page.evaluate("window.caught") is None


def test_a_task_leads_to_its_run_and_the_run_to_the_task(page: Page, running: Running) -> None:
    run = samples.history()[30]
    page.goto(f"{running.url}#/table/orders?run={run['run_id']}")
    row = page.locator("tr[data-run]")
    expect(row).to_have_attribute("data-run", run["run_id"])
    expect(row).to_be_in_viewport()
    task = quote(run["airflow"]["task_id"])
    links = [link.get_attribute("href") for link in row.get_by_role("link").all()]
    path = f"/dags/memwal_{task}/runs/{quote(run['airflow']['run_id'], safe='')}"
    assert links == [path, f"{path}/tasks/{task}/mapped/3?try_number=1"]


def test_a_thousand_shards_are_paged_and_found(page: Page, running: Running) -> None:
    page.goto(f"{running.url}#/table/clicks")
    counted = page.locator("[data-part=shard-count]")
    rows = page.locator("tr[data-shard]")
    expect(counted).to_have_text(f"1{TO}50 of 1,000 shards")
    expect(rows).to_have_count(50)
    first = rows.first.get_attribute("data-shard")
    assert first is not None
    page.get_by_role("button", name="Next").click()
    expect(counted).to_have_text(f"51{TO}100 of 1,000 shards")
    expect(page.locator(f"tr[data-shard='{first}']")).to_have_count(0)
    page.get_by_placeholder("Find a shard").fill(first)
    expect(rows).to_have_count(1)
    expect(counted).to_have_text(f"1{TO}1 of 1 shard, 1,000 in all")
    page.get_by_placeholder("Find a shard").fill("")
    page.get_by_label("Show").select_option("due")
    expect(counted).to_have_text(f"1{TO}50 of 200 shards, 1,000 in all")
    page.get_by_label("Show").select_option("broken")
    expect(page.locator("[data-part=shards] .empty")).to_have_text("None of the 1,000 shards fits.")


def test_nothing_yet_is_told_in_every_place(page: Page, running: Running) -> None:
    page.goto(f"{running.url}#/table/inventory")
    expect(page.locator("[data-plot=throughput-rows] .empty")).to_have_text(
        "No merge has been recorded yet."
    )
    expect(page.locator("[data-part=shards] .empty")).to_contain_text("No shard yet")
    expect(page.get_by_text("No run has been recorded yet.")).to_be_visible()
    expect(page.locator(".panel .empty")).to_have_text("Not known.")
    page.goto(f"{running.url}#/table/hangs-a")
    expect(page.locator(".alert")).to_contain_text("no answer within 4 s")
    expect(page.get_by_text("Nothing is known of this table.")).to_be_visible()
    assert page.locator(".tile").count() == 0
    page.goto(f"{running.url}#/table/nowhere")
    expect(page.locator("#notices")).to_contain_text("no such table in the configuration")


def test_it_stays_fresh_by_itself_and_leaves_the_reader_alone(page: Page, running: Running) -> None:
    page.goto(f"{running.url}#/table/orders")
    tile = page.locator(".tile", has_text="Pending").first
    expect(tile).to_contain_text("none")
    figure = page.locator("[data-plot=backlog-bytes]")
    figure.get_by_text("Numbers").click()
    figure.locator("svg").focus()
    more = samples.status("orders", [samples.shard(0, pending=3)])
    samples.put(running.folder, more, samples.history(25, first=1))
    expect(tile).to_contain_text("3")
    expect(figure.locator(".reading")).to_contain_text("9 MiB")
    assert figure.locator("details").get_attribute("open") is not None
    assert page.evaluate("document.activeElement.dataset.key") == "plot-backlog-bytes"


def test_an_ended_session_and_a_silent_server_are_told(page: Page, running: Running) -> None:
    page.goto(running.url)
    expect(page.locator("tr[data-table='orders']")).to_be_visible()
    running.doorman.open = False
    expect(page.locator("#notices")).to_contain_text("Your session has ended")
    running.doorman.open = True
    expect(page.locator("#notices")).to_be_empty()
    running.stop()
    expect(page.locator("#notices")).to_contain_text("did not answer. What is shown may be old.")
    expect(page.locator("tr[data-table='orders']")).to_be_visible()


def test_a_refused_backfill_is_told_and_can_be_tried_again(page: Page, running: Running) -> None:
    running.rejection = Rejected(409, "the DAG memwal_backfill is paused; unpause it")
    page.goto(f"{running.url}#/table/clicks")
    row = page.locator("tr[data-shard]").first
    shard = row.get_attribute("data-shard")
    row.get_by_role("button").click()
    dialog = page.locator("#backfill-dialog")
    expect(dialog.locator("textarea")).to_have_value(str(shard))
    dialog.get_by_role("button", name="Start").click()
    expect(dialog.locator(".notice.bad")).to_have_text(str(running.rejection))
    running.rejection = None
    dialog.get_by_role("button", name="Start").click()
    expect(dialog.locator("#started-run")).to_have_attribute(
        "href", "/dags/memwal_backfill/runs/manual__1"
    )
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_a_broken_configuration_is_told_beside_the_last_data(page: Page, running: Running) -> None:
    page.goto(running.url)
    expect(page.locator("tr[data-table='orders']")).to_be_visible()
    (running.folder / "memwal.toml").write_text("[tables.orders]\nurl = 'x'\n")
    expect(page.locator("#notices")).to_contain_text("unknown key 'tables.orders.url'")
    expect(page.locator("tr[data-table='orders']")).to_be_visible()


def test_what_moves_on_the_screen_does_not_pile_up(page: Page, running: Running) -> None:
    page.goto(running.url)
    expect(page.locator("tr[data-table='clicks']")).to_be_visible()
    before = page.evaluate("document.querySelectorAll('*').length")
    deadline = time.monotonic() + 60
    calls = len(samples.calls(running.folder))
    while len(samples.calls(running.folder)) < calls + 6 and time.monotonic() < deadline:
        page.wait_for_timeout(250)
    after = page.evaluate("document.querySelectorAll('*').length")
    assert after < before * 1.5
