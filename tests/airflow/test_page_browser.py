"""The page in a real browser, inside a real Airflow, over real tables."""

from __future__ import annotations

import http.server
import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from local_airflow.home import JOBS_BIN
from local_airflow.rest import wait_until
from playwright.sync_api import Browser, BrowserContext, Frame, Page, expect

from tests.airflow.airflow_server import PASSWORDS, TestAirflow
from tests.airflow.page_browser import launched
from tests.airflow.test_page_routes import ACTION, Site, everything

pytestmark = pytest.mark.browser

DAG = "memwal_backfill"
WAIT_MS = 60_000
BACKFILL = {"tables": ["orders"], "jobs": ["merge"], "dry_run": True}


# On a machine that runs an Airflow besides.
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def server(airflow_server: TestAirflow) -> TestAirflow:
    """Airflow, with some history on the table `orders` and a backlog after it."""
    orders = airflow_server.tables["orders"]
    for job in ("merge", "index-catchup"):
        memwal(airflow_server, job, "orders")
    for _ in range(2):
        orders.fill(3)
        memwal(airflow_server, "merge", "orders")
    orders.fill(5, shard=1)
    airflow_server.client("admin").wait_for_dags(DAG)
    return airflow_server


def memwal(server: TestAirflow, *arguments: str) -> None:
    done = subprocess.run(
        [JOBS_BIN / "memwal", *arguments, "--json", "--config", server.config_file],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@dataclass
class Visit:
    """A browser window of one user, and what went wrong in it on our page's behalf."""

    server: TestAirflow
    context: BrowserContext
    page: Page
    faults: list[str] = field(default_factory=list)

    def watch(self) -> None:
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on(
            "console",
            lambda message: (
                message.type == "error"
                and "/memwal/" in message.location.get("url", "")
                and self.faults.append(f"{message.type}: {message.text}")
            ),
        )

    def login(self, user: str) -> None:
        """Through Airflow's own form."""
        self.page.goto(self.server.base_url)
        self.page.wait_for_url("**/auth/login**", timeout=WAIT_MS)
        self.page.fill("input[name=username]", user)
        self.page.fill("input[name=password]", PASSWORDS[user])
        self.page.click("button[type=submit]")
        self.page.wait_for_url(lambda url: "/auth/" not in url, timeout=WAIT_MS)

    def frame(self) -> Frame:
        """Open the page by its entry in Airflow's navigation."""
        self.page.get_by_role("link", name="MemWAL").or_(
            self.page.get_by_role("button", name="MemWAL")
        ).first.click()
        element = self.page.wait_for_selector("iframe[title=MemWAL]", timeout=WAIT_MS)
        assert element is not None
        frame = element.content_frame()
        assert frame is not None
        return frame

    def alone(self, place: str = "") -> Page:
        """The page by itself."""
        self.page.goto(f"{self.server.base_url}/memwal/{place}")
        return self.page


@pytest.fixture
def visit(browser: Browser, server: TestAirflow) -> Iterator[Callable[..., Visit]]:
    """`visit("admin")`: a window with that user logged in. It has to stay without faults."""
    opened: list[Visit] = []

    def open_window(user: str | None, **options: object) -> Visit:
        size = {"width": 1360, "height": 900}
        context = browser.new_context(**{"viewport": size, "color_scheme": "light", **options})  # type: ignore[arg-type]
        context.set_default_timeout(WAIT_MS)
        made = Visit(server, context, context.new_page())
        opened.append(made)
        made.watch()
        if user is not None:
            made.login(user)
        return made

    yield open_window
    for made in opened:
        made.context.close()
    assert [fault for made in opened for fault in made.faults] == []


def row(place: Page | Frame, name: str):  # type: ignore[no-untyped-def]
    return place.locator(f"tr[data-table='{name}']")


def test_from_login_through_the_navigation_to_a_table(visit: Callable[..., Visit]) -> None:
    admin = visit("admin")
    frame = admin.frame()
    expect(row(frame, "orders")).to_have_attribute("data-state", "due")
    expect(row(frame, "orders").locator(".state")).to_have_text("Due")
    expect(row(frame, "events")).to_be_visible()
    expect(frame.locator(".chip.state-due .number")).not_to_have_text("0")

    row(frame, "orders").get_by_role("link", name="orders").click()
    expect(frame.locator(".titleline h2")).to_have_text("orders")
    expect(frame.locator("tr[data-shard]")).to_have_count(2)
    for shard in admin.server.tables["orders"].shards:
        expect(frame.locator(f"tr[data-shard='{shard}']")).to_be_visible()
    expect(frame.locator("tr[data-run]").first).to_contain_text("merge")
    expect(frame.locator("#live")).to_have_attribute("aria-live", "polite")
    # Airflow's own address follows, and leads back to the table after a reload.
    admin.page.wait_for_url("**/plugin/memwal/memwal/#/table/orders")
    admin.page.reload()
    again = admin.page.frame_locator("iframe[title=MemWAL]")
    expect(again.locator(".titleline h2")).to_have_text("orders")
    again.get_by_role("link", name="All tables").click()
    expect(again.locator("tr[data-table='orders']")).to_be_visible()


def test_the_plots_are_drawn(visit: Callable[..., Visit]) -> None:
    page = visit("viewer").alone("#/table/orders")
    for key in ("backlog-generations", "backlog-bytes"):
        path = page.locator(f"[data-plot={key}] path.series")
        points = re.findall(r"[ML]([\d.]+) ([\d.]+)", path.get_attribute("d") or "")
        assert len(points) >= 7, key
        assert len({y for _, y in points}) >= 3, key
        texts = page.locator(f"[data-plot={key}] .axes text").all_text_contents()
        assert texts[0].startswith("0")
        assert any(re.fullmatch(r"\d\d:\d\d(:\d\d)?", text) for text in texts), texts
    for key in ("throughput-rows", "throughput-bytes"):
        bars = page.locator(f"[data-plot={key}] rect.bar")
        assert bars.count() == 3, key
        assert all(float(bar.get_attribute("height") or 0) > 0.5 for bar in bars.all())
    cut = """svg => [...svg.querySelectorAll(".axes text")].filter(text => {
        const [box, around] = [text.getBoundingClientRect(), svg.getBoundingClientRect()];
        return box.left < around.left || box.right > around.right + 1;
    }).map(text => text.textContent)"""
    for drawn in page.locator("[data-plot] .canvas svg").all():
        assert drawn.evaluate(cut) == []
    kinds = page.locator("[data-plot=storage] .stack rect")
    assert kinds.count() >= 3
    label = page.locator("[data-plot=backlog-generations] svg").get_attribute("aria-label") or ""
    assert re.match(r"Backlog, generations: 5 at .*; highest 1\d at .*; \d+ points\.", label), label


def test_a_run_is_told_by_its_host(visit: Callable[..., Visit]) -> None:
    page = visit("viewer").alone("#/table/orders")
    where = page.locator("td[data-label=Where]").first
    assert re.match(r"(local|spark) · [^\s@:(]+(\s|$)", where.inner_text()), where.inner_text()
    assert re.search(r"@.*:\d+ \(start", where.get_attribute("title") or "")


def test_a_plot_is_read_with_pointer_and_keys(visit: Callable[..., Visit]) -> None:
    page = visit("viewer").alone("#/table/orders")
    figure = page.locator("[data-plot=backlog-generations]")
    reading = figure.locator(".reading")
    expect(reading).to_contain_text("now 5 · highest 1")
    figure.locator("svg").hover(position={"x": 62, "y": 60})
    expect(reading).to_contain_text(re.compile(r"^\d+ · .* · (before|after) [a-z-]+"))
    page.mouse.move(0, 0)
    expect(reading).to_contain_text("highest")
    figure.locator("svg").focus()
    page.keyboard.press("End")
    expect(reading).to_contain_text("5 · ")
    page.keyboard.press("Home")
    expect(reading).to_contain_text("10 · ")
    figure.get_by_text("Numbers").click()
    expect(figure.locator("tbody tr").first).to_contain_text("now")


def test_it_follows_airflows_theme(visit: Callable[..., Visit]) -> None:
    admin = visit("admin")
    frame = admin.frame()
    root = frame.locator("html")
    for theme, back in (("dark", "rgb(17, 19, 22)"), ("light", "rgb(245, 246, 248)")):
        admin.page.evaluate(
            "theme => { document.documentElement.classList.remove('dark', 'light');"
            " document.documentElement.classList.add(theme); }",
            theme,
        )
        expect(root).to_have_attribute("data-theme", theme)
        expect(frame.locator("body")).to_have_css("background-color", back)


def test_by_itself_it_follows_what_airflow_remembers_else_the_system(
    visit: Callable[..., Visit],
) -> None:
    dark = visit("viewer", color_scheme="dark")
    page = dark.alone()
    page.evaluate("localStorage.removeItem('theme')")
    page.reload()
    expect(page.locator("body")).to_have_css("background-color", "rgb(17, 19, 22)")
    page.evaluate("localStorage.setItem('theme', 'light')")
    page.reload()
    expect(page.locator("body")).to_have_css("background-color", "rgb(245, 246, 248)")


@pytest.mark.parametrize("place", ["", "#/table/orders"])
def test_a_narrow_screen_needs_no_sideways_scrolling(
    visit: Callable[..., Visit], place: str
) -> None:
    page = visit("viewer", viewport={"width": 360, "height": 740}).alone(place)
    expect(page.locator("tr").first).to_be_attached()
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 360


def test_it_works_with_the_keyboard_alone(visit: Callable[..., Visit]) -> None:
    page = visit("viewer").alone()
    expect(row(page, "orders")).to_be_visible()
    page.locator("#skip").focus()
    page.keyboard.press("Enter")
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('href')") == "#/table/orders":
            break
    page.keyboard.press("Enter")
    expect(page.locator(".titleline h2")).to_have_text("orders")
    assert page.evaluate("document.activeElement.id") == "main"


def test_refreshing_says_so_and_brings_new_data(visit: Callable[..., Visit]) -> None:
    admin = visit("admin")
    page = admin.alone("#/table/events")
    number = page.locator(".tile", has_text="Pending").first.locator(".big")
    expect(number).to_have_text(re.compile(r"^\d+$"))
    before = int(number.inner_text())
    admin.server.tables["events"].fill(1)
    page.click("#refresh")
    expect(number).to_have_text(str(before + 1))
    expect(page.locator("#live")).to_contain_text("Updated. events:")


def test_filters_narrow_the_tables(visit: Callable[..., Visit]) -> None:
    page = visit("viewer").alone()
    expect(page.locator("tr[data-table]")).to_have_count(3)
    page.get_by_role("searchbox").fill("ord")
    expect(page.locator("tr[data-table]")).to_have_count(1)
    page.get_by_role("searchbox").fill("")
    broken = page.locator(".chip.state-broken")
    broken.click()
    expect(broken).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".empty")).to_have_text("No table fits the filter.")


def test_a_view_of_the_list_is_an_address_of_airflow(visit: Callable[..., Visit]) -> None:
    viewer = visit("viewer")
    frame = viewer.frame()
    frame.get_by_role("searchbox").fill("ord")
    frame.locator(".chip.state-due").click()
    view = re.compile(r"/plugin/memwal/memwal/#/\?q=ord&state=due$")
    viewer.page.wait_for_url(view)
    link = frame.get_by_role("link", name="Link to this view")
    assert link.evaluate("(link) => link.href") == viewer.page.url
    viewer.page.reload()
    again = viewer.page.frame_locator("iframe[title=MemWAL]")
    expect(again.locator(".chip.state-due")).to_have_attribute("aria-pressed", "true")
    expect(again.locator("tr[data-table]")).to_have_count(1)
    row(again, "orders").get_by_role("link", name="orders").click()
    expect(again.locator(".titleline h2")).to_have_text("orders")
    viewer.page.go_back()
    expect(again.get_by_role("searchbox")).to_have_value("ord")
    viewer.page.wait_for_url(view)
    again.get_by_role("link", name="Link to this view").click()
    expect(again.get_by_role("link", name="Link copied")).to_be_visible()


def test_a_viewer_may_look_and_not_start_anything(visit: Callable[..., Visit]) -> None:
    viewer = visit("viewer")
    page = viewer.alone("#/table/orders")
    button = page.locator("#backfill")
    expect(button).to_be_disabled()
    expect(page.locator("#why-not")).to_contain_text("needs the right to trigger")
    token = viewer.server.token("viewer")
    answer = httpx.post(
        f"{viewer.server.base_url}/memwal/actions/backfill",
        json=BACKFILL,
        headers=own_site(viewer.server),
        cookies={"_token": token},
    )
    assert answer.status_code == 403, answer.text


def own_site(server: TestAirflow) -> dict[str, str]:
    return {**ACTION, "origin": server.base_url}


def test_an_admin_starts_a_backfill_and_follows_it(visit: Callable[..., Visit]) -> None:
    admin = visit("admin")
    client = admin.server.client("admin")
    client.patch(f"/dags/{DAG}", {"is_paused": True})
    frame = admin.frame()
    row(frame, "orders").get_by_role("link", name="orders").click()
    expect(frame.locator("#why-not")).to_contain_text("is paused; unpause it")
    client.patch(f"/dags/{DAG}", {"is_paused": False})
    try:
        admin.page.reload()
        inside = admin.page.frame_locator("iframe[title=MemWAL]")
        inside.locator("#backfill").click()
        dialog = inside.locator("#backfill-dialog")
        expect(dialog.get_by_label("Dry run")).to_be_checked()
        dialog.get_by_label("Index catch-up").uncheck()
        dialog.get_by_label("Snapshot").uncheck()
        dialog.get_by_role("button", name="Start").click()
        link = dialog.locator("#started-run")
        expect(link).to_be_visible()
        run_id = link.text_content()
        run = client.get(f"/dags/{DAG}/dagRuns/{run_id}")
        assert run["triggering_user_name"] == "admin"
        assert run["conf"]["tables"] == ["orders"]
        assert run["conf"]["jobs"] == ["merge"]
        assert run["conf"]["dry_run"] is True
        link.click()
        admin.page.wait_for_url(re.compile(f"/dags/{DAG}/runs/"))
        expect(admin.page.get_by_text(str(run_id)).first).to_be_visible()
        admin.page.goto("about:blank")  # Airflow's page of a run keeps a core busy
        ended = wait_until(
            "the run's end",
            lambda: (
                (state := client.get(f"/dags/{DAG}/dagRuns/{run_id}")["state"])
                in ("success", "failed")
                and state
            ),
            240,
        )
        assert ended == "success"
        told = admin.alone("#/table/orders").locator("[data-part=started]")
        expect(told).to_contain_text("Dry run of a backfill succeeded")
        expect(told.get_by_role("link", name=str(run_id))).to_be_visible()
    finally:
        client.patch(f"/dags/{DAG}", {"is_paused": True})


def test_what_the_dag_refuses_is_told_in_the_form(visit: Callable[..., Visit]) -> None:
    admin = visit("admin")
    client = admin.server.client("admin")
    client.patch(f"/dags/{DAG}", {"is_paused": False})
    try:
        page = admin.alone("#/table/orders")
        page.locator("#backfill").click()
        page.get_by_text("Which tables, shards and generations").click()
        page.locator("#backfill-dialog textarea").fill("no-shard")
        # The browser itself logs every answer of 4xx as an error.
        with expected_faults(admin):
            page.get_by_role("button", name="Start").click()
            expect(page.locator("#backfill-dialog .notice.bad")).to_contain_text("no-shard")
    finally:
        client.patch(f"/dags/{DAG}", {"is_paused": True})


@contextmanager
def expected_faults(visit: Visit) -> Iterator[None]:
    before = list(visit.faults)
    yield
    assert all("status of 4" in fault for fault in visit.faults[len(before) :])
    visit.faults[:] = before


def test_the_connection_s_secrets_stay_inside_and_it_chooses_no_configuration(
    visit: Callable[..., Visit], tmp_path: Path
) -> None:
    admin = visit("admin")
    client = admin.server.client("admin")
    page = admin.alone()
    expect(page.locator("tr[data-table]")).to_have_count(3)
    other = tmp_path / "other.toml"
    uri = admin.server.tables["events"].uri
    other.write_text(f'[tables.elsewhere]\nuri = "{uri}"\n')
    connection = {
        "connection_id": "memwal_default",
        "conn_type": "memwal",
        "login": "sesame-id",
        "password": "sesame-secret",
        "extra": json.dumps({"config_file": str(other)}),
    }
    client.post("/connections", connection)
    try:
        page.wait_for_timeout(5000)
        page.click("#refresh")
        page.wait_for_timeout(5000)
        expect(page.locator("tr[data-table]")).to_have_count(3)
        expect(row(page, "events")).to_contain_text("generations")
        expect(row(page, "elsewhere")).to_have_count(0)
        assert "sesame" not in page.content()
    finally:
        client.http.delete("/api/v2/connections/memwal_default").raise_for_status()


def test_every_route_of_the_running_airflow_is_guarded(server: TestAirflow, tmp_path: Path) -> None:
    site = Site(tmp_path)
    for path in everything(site.app):
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
            url = f"{server.base_url}/memwal{path}"
            answer = httpx.request(method, url, headers=own_site(server))
            assert answer.status_code == 401, f"{method} {url}"
        forged = httpx.get(f"{server.base_url}/memwal{path}", cookies={"_token": "forged"})
        assert forged.status_code in (401, 403), path


def test_posts_of_other_sites_do_nothing(
    visit: Callable[..., Visit], server: TestAirflow, tmp_path: Path
) -> None:
    admin = visit("admin")
    before = server.client("admin").get(f"/dags/{DAG}/dagRuns")["total_entries"]
    target = f"{server.base_url}/memwal/actions/backfill"
    page = tmp_path / "evil.html"
    page.write_text(EVIL.replace("TARGET", target).replace("BODY", json.dumps(BACKFILL)))
    statuses: list[tuple[str, int]] = []
    admin.page.on(
        "response",
        lambda answer: (
            answer.url == target and statuses.append((answer.request.method, answer.status))
        ),
    )
    # 127.0.0.1 with another port is the same site, so the cookie comes along; localhost is not.
    for host in ("127.0.0.1", "localhost"):
        with folder_server(tmp_path, host) as address:
            admin.page.goto(f"{address}/evil.html")
            admin.page.wait_for_function("window.done === true")
            with admin.page.expect_navigation():
                admin.page.evaluate("document.forms[0].submit()")
    admin.context.close()
    # The browser logs every refusal.
    admin.faults.clear()
    assert {status for method, status in statuses if method == "POST"} <= {401, 403, 415}
    assert ("POST", 403) in statuses
    after = server.client("admin").get(f"/dags/{DAG}/dagRuns")["total_entries"]
    assert after == before


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


@contextmanager
def folder_server(folder: Path, host: str) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(folder))  # type: ignore[arg-type]

        def log_message(self, *args: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://{host}:{server.server_port}"
        server.shutdown()
