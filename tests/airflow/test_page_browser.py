"""The page in a real browser, inside a real Airflow, over real tables."""

from __future__ import annotations

import http.server
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Frame, Page, expect

from tests.airflow.airflow_server import PASSWORDS, TestAirflow
from tests.airflow.page_browser import WAIT_MS, opened
from tests.airflow.test_page_routes import BACKFILL

pytestmark = pytest.mark.nightly

DAG = "memwal_backfill"
Visit = Callable[[str], Page]


@pytest.fixture
def visit(browser: Browser, airflow_server: TestAirflow) -> Iterator[Visit]:
    """`visit("admin")`: a window with that user logged in, through Airflow's own form."""
    airflow_server.client("admin").wait_for_dags(DAG)
    with ExitStack() as windows:

        def login(user: str) -> Page:
            page = windows.enter_context(opened(browser))
            page.goto(airflow_server.base_url)
            page.wait_for_url("**/auth/login**", timeout=WAIT_MS)
            page.fill("input[name=username]", user)
            page.fill("input[name=password]", PASSWORDS[user])
            page.click("button[type=submit]")
            page.wait_for_url(lambda url: "/auth/" not in url, timeout=WAIT_MS)
            return page

        yield login


def open_frame(page: Page) -> Frame:
    """Open our page by its entry in Airflow's navigation."""
    page.get_by_role("link", name="MemWAL").or_(
        page.get_by_role("button", name="MemWAL")
    ).first.click()
    element = page.wait_for_selector("iframe[title=MemWAL]", timeout=WAIT_MS)
    assert element is not None
    frame = element.content_frame()
    assert frame is not None
    return frame


def test_from_login_through_the_navigation_to_a_table_and_back(
    visit: Visit, airflow_server: TestAirflow
) -> None:
    airflow_server.tables["orders"].fill(5)
    page = visit("viewer")
    frame = open_frame(page)
    orders = frame.locator("tr[data-table='orders']")
    expect(orders).to_have_attribute("data-state", "due")
    expect(frame.locator("tr[data-table]")).to_have_count(3)
    for theme, back in (("dark", "rgb(17, 19, 22)"), ("light", "rgb(245, 246, 248)")):
        page.evaluate(
            "theme => { document.documentElement.classList.remove('dark', 'light');"
            " document.documentElement.classList.add(theme); }",
            theme,
        )
        expect(frame.locator("html")).to_have_attribute("data-theme", theme)
        expect(frame.locator("body")).to_have_css("background-color", back)

    # Airflow's own address follows, and leads back to the view and to the table after a reload.
    frame.get_by_role("searchbox").fill("ord")
    frame.locator(".chip.state-due").click()
    view = re.compile(r"/plugin/memwal/memwal/#/\?q=ord&state=due$")
    page.wait_for_url(view)
    link = frame.get_by_role("link", name="Link to this view")
    assert link.evaluate("(link) => link.href") == page.url
    page.reload()
    again = page.frame_locator("iframe[title=MemWAL]")
    expect(again.locator(".chip.state-due")).to_have_attribute("aria-pressed", "true")
    expect(again.locator("tr[data-table]")).to_have_count(1)
    again.locator("tr[data-table='orders']").get_by_role("link", name="orders").click()
    page.wait_for_url("**/plugin/memwal/memwal/#/table/orders")
    page.reload()
    expect(again.locator(".titleline h2")).to_have_text("orders")
    for shard in airflow_server.tables["orders"].shards:
        expect(again.locator(f"tr[data-shard='{shard}']")).to_be_visible()
    # A viewer may look, and not start anything.
    expect(again.locator("#backfill")).to_be_disabled()
    expect(again.locator("#why-not")).to_contain_text("needs the right to trigger")
    page.go_back()
    expect(again.get_by_role("searchbox")).to_have_value("ord")
    page.wait_for_url(view)


def test_an_admin_starts_a_backfill_and_follows_it(
    visit: Visit, airflow_server: TestAirflow
) -> None:
    page, client = visit("admin"), airflow_server.client("admin")
    client.set_paused(DAG, True)
    frame = open_frame(page)
    frame.locator("tr[data-table='orders']").get_by_role("link", name="orders").click()
    expect(frame.locator("#why-not")).to_contain_text("is paused; unpause it")
    client.set_paused(DAG, False)
    try:
        page.reload()
        inside = page.frame_locator("iframe[title=MemWAL]")
        inside.locator("#backfill").click()
        dialog = inside.locator("#backfill-dialog")
        dialog.get_by_label("Index catch-up").uncheck()
        dialog.get_by_label("Snapshot").uncheck()
        dialog.get_by_role("button", name="Start").click()
        link = dialog.locator("#started-run")
        expect(link).to_be_visible()
        run_id = str(link.text_content())
        run = client.get(f"/dags/{DAG}/dagRuns/{run_id}")
        assert run["triggering_user_name"] == "admin"
        conf = {"tables": ["orders"], "jobs": ["merge"], "dry_run": True}
        assert conf.items() <= run["conf"].items()
        link.click()
        page.wait_for_url(re.compile(f"/dags/{DAG}/runs/"))
        expect(page.get_by_text(run_id).first).to_be_visible()
        page.goto("about:blank")  # Airflow's page of a run keeps a core busy
        assert client.wait_for_run(DAG, run_id) == "success"
        page.goto(f"{airflow_server.base_url}/memwal/#/table/orders")
        told = page.locator("[data-part=started]")
        expect(told).to_contain_text("Dry run of a backfill succeeded")
        expect(told.get_by_role("link", name=run_id)).to_be_visible()
    finally:
        client.set_paused(DAG, True)


def test_posts_of_other_sites_do_nothing(
    visit: Visit, airflow_server: TestAirflow, tmp_path: Path
) -> None:
    admin, client = visit("admin"), airflow_server.client("admin")
    before = client.get(f"/dags/{DAG}/dagRuns")["total_entries"]
    target = f"{airflow_server.base_url}/memwal/actions/backfill"
    page = tmp_path / "evil.html"
    page.write_text(EVIL.replace("TARGET", target).replace("BODY", json.dumps(BACKFILL)))
    statuses: list[tuple[str, int]] = []
    admin.on(
        "response",
        lambda answer: (
            answer.url == target and statuses.append((answer.request.method, answer.status))
        ),
    )
    # 127.0.0.1 with another port is the same site, so the cookie comes along; localhost is not.
    for host in ("127.0.0.1", "localhost"):
        with folder_server(tmp_path, host) as address:
            admin.goto(f"{address}/evil.html")
            admin.wait_for_function("window.done === true")
            with admin.expect_navigation():
                admin.evaluate("document.forms[0].submit()")
    assert {status for method, status in statuses if method == "POST"} <= {401, 403, 415}
    assert ("POST", 403) in statuses
    assert client.get(f"/dags/{DAG}/dagRuns")["total_entries"] == before


EVIL = """<!doctype html><title>evil</title>
<form method="post" enctype="text/plain" action="TARGET"><input name='BODY' value=""></form>
<script>
(async () => {
  const plain = {"content-type": "text/plain"};
  const ours = {"content-type": "application/json", "x-memwal-action": "1"};
  for (const headers of [plain, ours]) for (const mode of ["no-cors", "cors"]) {
    const options = {method: "POST", mode, credentials: "include", headers, body: 'BODY'};
    try { await fetch("TARGET", options); } catch (error) { /* refused by the browser */ }
  }
  window.done = true;
})();
</script>"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Files, without a line for each in the test's output."""

    def log_message(self, *args: object) -> None:
        return


@contextmanager
def folder_server(folder: Path, host: str) -> Iterator[str]:
    files = partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), files) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{host}:{server.server_port}"
        server.shutdown()
