"""The page in a real browser over what memwal could say, without an Airflow around it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.airflow import page_samples as samples
from tests.airflow.page_browser import Running, opened, snap

SCRIPT = "<img src=x onerror=\"window.caught = 'yes'\"><script>window.caught = 'yes'</script>"
TO = "\N{EN DASH}"
TABLES = ("orders", "clicks", "refunds", "inventory", "hangs-a", "away", "users", SCRIPT)
# Per table its state, its word and its badge, as they stand at one moment.
ROWS = """(rows) => rows.map((row) => {
    const badge = row.querySelector(".state");
    return [row.dataset.state, badge.innerText.trim(), badge.querySelector("svg").innerHTML];
})"""


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(samples, "NOW", datetime.now(UTC))
    with Running(tmp_path) as made:
        made.answers.name_tables(*TABLES)
        put = made.answers.put
        thousand = [samples.shard(n, pending=n % 5) for n in range(1000)]
        broken = samples.shard(1, outcome="failed", error=f"bad magic {SCRIPT} (MW-M01)")
        failed = samples.run("merge", 3, outcome="failed", exit_code=8, error=SCRIPT)
        nothing = dict.fromkeys(("storage", "reclaimable", "snapshot"))
        put(samples.status("orders", lease=samples.lease()), samples.history())
        put(samples.status("clicks", thousand), samples.history(60))
        put({"table": "refunds", "outcome": "failed", "error": f"credentials {SCRIPT}"})
        put(samples.status("inventory", [], indexes=[], **nothing))
        put(samples.unreachable("away"))
        shards = [samples.shard(0), broken]
        put(samples.status("users", shards, outcome="partial", error=broken["error"]), [failed])
        yield made


@pytest.fixture
def page(browser: Browser, running: Running) -> Iterator[Page]:
    with opened(browser) as found:
        yield found


@pytest.mark.e2e
def test_tables_with_the_worst_first_and_one_of_them(page: Page, running: Running) -> None:
    states = {
        "refunds": "broken",
        "users": "broken",
        "away": "unreachable",
        "hangs-a": "unknown",
        "clicks": "attention",
        "orders": "ok",
        "inventory": "ok",
    }
    page.goto(running.url)
    for name, state in states.items():
        row = page.locator(f"tr[data-table='{name}']")
        expect(row).to_have_attribute("data-state", state)
    rows = page.locator("tr[data-table]").evaluate_all(ROWS)
    ranks = ["broken", "unreachable", "unknown", "attention", "ok"]
    order = [state for state, _, _ in rows]
    assert order == sorted(order, key=ranks.index)
    assert all(word.lower() == state for state, word, _ in rows)
    shapes = {word: shape for _, word, shape in rows}
    assert len(set(shapes.values())) == len(shapes) == 5
    expect(page.locator("tr[data-table='orders'] [data-label=Now]")).to_contain_text("merge")

    page.locator("tr[data-table='orders']").get_by_role("link", name="orders").click()
    expect(page.locator(".titleline h2")).to_have_text("orders")
    expect(page.locator("tr[data-shard]")).to_have_count(3)
    expect(page.locator("tr[data-run]")).to_have_count(25)
    chart = page.locator("[data-plot=backlog-bytes]")
    expect(chart.locator("canvas")).to_be_visible()
    expect(chart.locator(".reading")).to_contain_text("highest")
    page.get_by_role("link", name="All tables").click()
    expect(page.locator("tr[data-table='orders']")).to_be_visible()


@pytest.mark.nightly
def test_what_memwal_says_is_never_markup(page: Page, running: Running) -> None:
    page.goto(running.url)
    expect(page.locator("tr[data-table='refunds'] .why")).to_contain_text("<img src=x")
    row = page.locator("tr[data-table]", has_text="<script>")
    row = row.filter(has_text="memwal said nothing")
    row.get_by_role("link").click()
    expect(page.locator(".titleline h2")).to_have_text(SCRIPT)
    page.goto(f"{running.url}#/table/users")
    expect(page.locator("tr.bad").first).to_contain_text("bad magic <img")
    expect(page.locator("tr[data-run] .error")).to_have_text(SCRIPT)
    page.goto(f"{running.url}#/table/{quote(SCRIPT, safe='')}")
    expect(page.locator(".titleline h2")).to_have_text(SCRIPT)
    assert page.locator("main img, main script").count() == 0
    assert page.evaluate("window.caught") is None


@pytest.mark.nightly
def test_trouble_is_told_first_with_what_to_do(page: Page, running: Running) -> None:
    page.goto(f"{running.url}#/table/users")
    alerts = page.locator(".alert")
    expect(alerts).to_have_count(2)
    expect(alerts.first).to_contain_text(re.compile("Broken.*What to do:.*memwal repair", re.S))
    place = "document.querySelector('.alert').compareDocumentPosition"
    first = page.evaluate(f"{place}(document.querySelector('.tiles'))")
    assert first & 4, "alerts come before what else there is to read"
    snap(page, "table-in-trouble")
    page.goto(f"{running.url}#/table/away")
    expect(alerts).to_contain_text(re.compile("gave up after 3 attempts.*Since", re.S))
    expect(page.get_by_text("Nothing is known of this table.")).to_be_visible()


@pytest.mark.nightly
def test_nothing_yet_is_told_in_every_place(page: Page, running: Running) -> None:
    page.goto(f"{running.url}#/table/inventory")
    expect(page.locator("[data-plot=throughput-rows] .empty")).to_have_text(
        "No merge has been recorded yet."
    )
    expect(page.locator("[data-part=shards] .empty")).to_contain_text("No shard yet")
    expect(page.get_by_text("No run has been recorded yet.")).to_be_visible()
    page.goto(f"{running.url}#/table/nowhere")
    expect(page.locator("#notices")).to_contain_text("no such table in the configuration")
    running.answers.gate.clear()
    running.answers.name_tables("hangs-b")
    page.goto(f"{running.url}#/table/hangs-b")
    expect(page.locator("[data-state=first-look]")).to_be_visible()
    snap(page, "first-look")
    running.answers.gate.set()
    running.answers.config.write_text("")
    page.goto(running.url)
    empty = page.locator("[data-state=empty]")
    expect(empty).to_contain_text(f"Add this to {running.answers.config}")
    expect(page.locator("#notices")).to_be_empty()
    expect(page.get_by_role("searchbox")).to_be_hidden()
    snap(page, "empty")
    running.answers.name_tables("orders")
    expect(page.locator("tr[data-table=orders]")).to_be_visible()


@pytest.mark.nightly
def test_trouble_with_the_page_itself_is_told_beside_the_last_data(
    page: Page, running: Running
) -> None:
    page.goto(f"{running.url}#/table/orders")
    expect(page.locator(".tiles")).to_be_visible()
    running.doorman.open = False
    notices = page.locator("#notices")
    link = notices.get_by_role("link", name="Log in to Airflow")
    expect(link).to_be_visible()
    assert "%23%2Ftable%2Forders" in str(link.get_attribute("href"))
    running.doorman.open = True
    expect(notices).to_be_empty()
    running.answers.config.write_text("[tables.orders]\nurl = 'x'\n")
    expect(notices).to_contain_text("unknown key 'tables.orders.url'")
    expect(page.locator(".tiles")).to_be_visible()
    running.stop()
    expect(notices).to_contain_text("did not answer. What is shown may be old.")
    expect(page.locator(".tiles")).to_be_visible()


@pytest.mark.nightly
def test_times_and_colours_are_those_chosen_in_airflow(browser: Browser, running: Running) -> None:
    finished = "2026-11-21T12:00:00.000+00:00"
    running.answers.put(samples.status("orders"), [samples.run(finished_at=finished)])
    with opened(browser, timezone_id="America/New_York", color_scheme="dark") as page:
        page.goto(f"{running.url}#/table/orders")
        expect(page.locator("body")).to_have_css("background-color", "rgb(17, 19, 22)")
        time = page.locator("tr[data-run] time").first
        for stored, shown in (
            (None, "2026-11-21 07:00:00"),
            ("Asia/Kolkata", "2026-11-21 17:30:00"),
            ("No/Where", "2026-11-21 07:00:00"),
        ):
            if stored:
                # As Airflow 3.3 stores it.
                page.evaluate("z => localStorage.setItem('timezone', JSON.stringify(z))", stored)
                page.evaluate("localStorage.setItem('theme', 'light')")
                page.reload()
                background = "rgb(245, 246, 248)"
                expect(page.locator("body")).to_have_css("background-color", background)
            expect(time).to_have_text(shown)


@pytest.mark.nightly
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
    page.get_by_role("button", name="Show all runs").click()
    expect(row).to_have_count(25)
    page.get_by_label("Job").select_option("index-catchup")
    count = page.locator("[data-part=run-count]")
    expect(count).to_have_text(f"1{TO}24 of 24 runs")
    assert page.url.endswith("#/table/orders?job=index-catchup")
    page.goto(f"{running.url}#/table/orders?run=nowhere")
    expect(page.get_by_text("is not among the newest records")).to_be_visible()


@pytest.mark.nightly
def test_a_thousand_shards_are_paged_and_found(page: Page, running: Running) -> None:
    page.goto(f"{running.url}#/table/clicks")
    counted, rows = page.locator("[data-part=shard-count]"), page.locator("tr[data-shard]")
    expect(counted).to_have_text(f"1{TO}50 of 1,000 shards")
    expect(rows).to_have_count(50)
    first = str(rows.first.get_attribute("data-shard"))
    shards = page.locator("[data-part=shards]")
    shards.get_by_role("button", name="Next").click()
    expect(counted).to_have_text(f"51{TO}100 of 1,000 shards")
    expect(page.locator(f"tr[data-shard='{first}']")).to_have_count(0)
    page.get_by_placeholder("Find a shard").press_sequentially(first)
    expect(rows).to_have_count(1)
    expect(counted).to_have_text(f"1{TO}1 of 1 shard")
    snap(page, "shards")


@pytest.mark.nightly
def test_a_run_is_started_with_what_the_form_says(page: Page, running: Running) -> None:
    page.goto(f"{running.url}#/table/orders")
    page.locator("#trigger").click()
    dialog = page.locator("#trigger-dialog")
    conf, start = dialog.get_by_role("textbox"), dialog.get_by_role("button", name="Start")
    expect(start).to_be_enabled()
    order = {"tables": ["orders"], "dry_run": True, "until_generation": None}
    assert json.loads(conf.input_value()) == order
    dialog.get_by_text("What the fields mean").click()
    expect(dialog).to_contain_text("About until_generation")
    for odd, says in (("{", "JSON"), ('{"odd": 1}', "odd is not a field")):
        conf.fill(odd)
        start.click()
        expect(dialog.get_by_role("alert")).to_contain_text(says)
    conf.fill(json.dumps({**order, "until_generation": 7}))
    start.click()
    link = dialog.get_by_role("link", name="manual__1")
    expect(link).to_have_attribute("href", "/dags/memwal_merge/runs/manual__1")
    expect(start).to_be_disabled()
    assert running.started == [("memwal_merge", {**order, "until_generation": 7})]
    dialog.get_by_label("DAG").select_option("memwal_backfill")
    expect(dialog.get_by_role("alert")).to_contain_text("is paused")
    snap(page, "trigger")
    running.doorman.dags = ()
    page.reload()
    expect(page.locator("#trigger")).to_be_disabled()
    expect(page.locator("#why-not")).to_contain_text("needs the right to trigger")


@pytest.fixture
def lake(running: Running) -> Running:
    tables = samples.lake(200)
    running.answers.name_tables(**{t["table"]: t.get("uri", "s3://lake/misc") for t, _ in tables})
    for status, runs in tables:
        running.answers.put(status, runs)
    running.feed.refresh()
    return running


@pytest.mark.nightly
def test_two_hundred_tables_are_paged_ordered_and_found(page: Page, lake: Running) -> None:
    page.goto(lake.url)
    rows, shown = page.locator("tr[data-table]"), page.locator("[data-part=table-count]")
    expect(page.locator("#freshness")).to_contain_text("at 197 of 200 tables")
    for state, number in {"broken": 4, "unreachable": 3, "unknown": 0}.items():
        expect(page.locator(f".chip.state-{state}")).to_contain_text(str(number))
    expect(shown).to_have_text(f"1{TO}50 of 200 tables")
    seen = set(rows.locator("th a").all_text_contents())
    for number in (2, 3, 4):
        page.get_by_role("button", name="Next").click()
        expect(shown).to_have_text(f"{number * 50 - 49}{TO}{number * 50} of 200 tables")
        seen |= set(rows.locator("th a").all_text_contents())
    assert len(seen) == 200
    assert page.url.endswith("#/?page=4")
    page.get_by_label("Order").select_option("backlog")
    expect(rows.first.locator("[data-label=Backlog]")).to_contain_text("24 generations")
    page.locator(".chip.state-attention").click()
    expect(shown).to_contain_text("34 tables")
    page.locator(".chip.state-broken").click()
    expect(shown).to_contain_text("38 tables")
    page.get_by_role("searchbox").fill("iot_users")
    expect(rows).to_have_count(2)
    assert page.url.endswith("#/?q=iot_users&state=broken,attention&sort=backlog")
    snap(page, "list-found")
    # A view is a link, and a table leads back to it.
    rows.first.get_by_role("link").click()
    page.get_by_role("link", name="All tables").click()
    expect(rows).to_have_count(2)
    page.reload()
    expect(rows).to_have_count(2)
    expect(page.get_by_role("searchbox")).to_have_value("iot_users")
    page.get_by_role("searchbox").fill("nothing like it")
    page.get_by_role("link", name="Show all").click()
    expect(shown).to_have_text(f"1{TO}50 of 200 tables")
    page.goto(f"{lake.url}#/?state=toString,x&sort=constructor&page=99999")
    expect(shown).to_have_text(f"151{TO}200 of 200 tables")
    snap(page, "list")
