"""The page in a real browser, inside a real Airflow, over real tables."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from memwal_airflow.page.access import DAGS
from playwright.sync_api import Browser, Frame, Page, expect

from tests.airflow.airflow_server import PASSWORDS, TestAirflow
from tests.airflow.page_browser import WAIT_MS, opened

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
    expect(orders).to_have_attribute("data-state", "attention")
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
    frame.locator(".chip.state-attention").click()
    view = re.compile(r"/plugin/memwal/memwal/#/\?q=ord&state=attention$")
    page.wait_for_url(view)
    page.reload()
    again = page.frame_locator("iframe[title=MemWAL]")
    expect(again.locator(".chip.state-attention")).to_have_attribute("aria-pressed", "true")
    expect(again.locator("tr[data-table]")).to_have_count(1)
    again.locator("tr[data-table='orders']").get_by_role("link", name="orders").click()
    page.wait_for_url("**/plugin/memwal/memwal/#/table/orders")
    page.go_back()
    expect(again.get_by_role("searchbox")).to_have_value("ord")
    page.wait_for_url(view)
    page.go_forward()
    page.wait_for_url("**/plugin/memwal/memwal/#/table/orders")
    page.reload()
    expect(again.locator(".titleline h2")).to_have_text("orders")
    for shard in airflow_server.tables["orders"].shards:
        expect(again.locator(f"tr[data-shard='{shard}']")).to_be_visible()
    # A viewer may look, and not start anything.
    expect(again.locator("#trigger")).to_be_disabled()
    expect(again.locator("#why-not")).to_contain_text("needs the right to trigger")


def test_an_admin_starts_a_run_through_airflows_own_api(
    visit: Visit, airflow_server: TestAirflow
) -> None:
    page, client = visit("admin"), airflow_server.client("admin")
    frame = open_frame(page)
    frame.locator("tr[data-table='orders']").get_by_role("link", name="orders").click()
    frame.locator("#trigger").click()
    dialog = frame.locator("#trigger-dialog")
    expect(dialog.get_by_label("DAG").locator("option")).to_have_count(len(DAGS))
    dialog.get_by_label("DAG").select_option(DAG)
    expect(dialog.get_by_role("alert")).to_contain_text("is paused")
    conf = dialog.get_by_role("textbox")
    form = json.loads(conf.input_value())
    assert {"tables": ["orders"], "dry_run": True, "execute": False}.items() <= form.items()
    conf.fill(json.dumps({**form, "bytes_per_commit_max": -1}))
    dialog.get_by_role("button", name="Start").click()
    expect(dialog.get_by_role("alert")).to_contain_text("-1 is less than the minimum")
    order = {**form, "jobs": ["merge"]}
    conf.fill(json.dumps(order))
    client.set_paused(DAG, False)
    try:
        dialog.get_by_role("button", name="Start").click()
        link = dialog.locator("#started-run")
        expect(link).to_be_visible()
        run_id = str(link.text_content())
        run = client.get(f"/dags/{DAG}/dagRuns/{run_id}")
        assert (run["triggering_user_name"], run["conf"]) == ("admin", order)
        link.click()
        page.wait_for_url(re.compile(f"/dags/{DAG}/runs/"))
        expect(page.get_by_text(run_id).first).to_be_visible()
        page.goto("about:blank")  # Airflow's page of a run keeps a core busy
        assert client.wait_for_run(DAG, run_id) == "success"
    finally:
        client.set_paused(DAG, True)
