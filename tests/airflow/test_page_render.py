"""The page in a real browser over what memwal could say, without an Airflow around it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from memwal_airflow.page.actions import Rejected
from memwal_airflow.page.app import make_clock
from playwright.sync_api import Browser, Page, expect

from tests.airflow import page_samples as samples
from tests.airflow.page_browser import Running, opened, snap

pytestmark = pytest.mark.nightly

SCRIPT = "<img src=x onerror=\"window.caught = 'yes'\"><script>window.caught = 'yes'</script>"
TO = "\N{EN DASH}"
TABLES = ("orders", "clicks", "refunds", "inventory", "hangs-a", "users", SCRIPT)


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(samples, "NOW", make_clock().now())
    with Running(tmp_path) as made:
        made.answers.name_tables(*TABLES)
        put = made.answers.put
        thousand = [samples.shard(n, pending=n % 5) for n in range(1000)]
        broken = samples.shard(1, outcome="failed", error=f"bad magic {SCRIPT}")
        failed = samples.run("merge", 3, outcome="failed", exit_code=8, error=SCRIPT)
        nothing = dict.fromkeys(("storage", "reclaimable", "snapshot"))
        put(samples.status("orders", lease=samples.lease()), samples.history())
        put(samples.status("clicks", thousand), samples.history(60))
        put({"table": "refunds", "outcome": "failed", "error": f"credentials {SCRIPT}"})
        put(samples.status("inventory", [], indexes=[], **nothing))
        shards = [samples.shard(0), broken]
        put(samples.status("users", shards, outcome="partial", error="x"), [failed])
        yield made


@pytest.fixture
def page(browser: Browser, running: Running) -> Iterator[Page]:
    with opened(browser) as found:
        yield found


# ---- what the page shows, state by state


def test_what_memwal_says_is_never_markup(page: Page, running: Running) -> None:
    page.goto(running.url)
    expect(page.locator("tr[data-table='refunds'] .reason")).to_contain_text("<img src=x")
    row = page.locator("tr[data-table]", has_text="<script>")
    row = row.filter(has_text="memwal said nothing")
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


def test_trouble_is_told_first_with_its_age_and_what_to_do(page: Page, running: Running) -> None:
    gone = samples.shard(2, abandoned=True, unflushed_wal_entries=5, idle_seconds=7200.0)
    error = "shard manifest 7 can't be read: bad magic (MW-M01)"
    broken = samples.shard(1, outcome="failed", error=error)
    held = "the lease is held by worker-1:7 for merge since 04:05; wait, or `memwal lease break`"
    hole = f"shard {gone['shard_id']}: generation 7 is neither merged nor listed (MW-H01)"
    kept = {"created_at": samples.ago(days=3), "expires_at": samples.ago(days=-4)}
    checkpoint = {**samples.SAMPLES["checkpoint"], **kept}
    slow = {"moved_at": samples.ago(days=15), "holder": f"loader@{'warehouse.' * 6}internal"}
    cursor = {**samples.SAMPLES["cursor"], **slow}
    backup = {**samples.SAMPLES["backup"], "made_at": samples.ago(days=3)}
    status = samples.status(
        "users",
        [samples.shard(0, pending=5), broken, gone],
        outcome="partial",
        warnings=[hole],
        checkpoints=[checkpoint],
        cursors=[cursor],
        backup=backup,
        backup_age_seconds=3 * 86_400.0,
    )
    failed = [
        samples.run("merge", n, outcome="failed", exit_code=4, error=held) for n in (3, 8, 13)
    ]
    running.answers.put(status, failed + samples.history(20, first=20))
    page.goto(f"{running.url}#/table/users")
    alerts = page.locator(".alert")
    expect(alerts).to_have_count(5)
    told = alerts.all_inner_texts()
    assert "memwal verify users" in told[0]
    assert "13 min ago" in told[1]
    assert "memwal lease break users" in told[1]
    assert "2 h ago" in told[2]
    assert "memwal rescue users" in told[2]
    assert any("memwal backup users" in text for text in told)
    assert any("the other program" in text for text in told)
    place = "document.querySelector('.alert').compareDocumentPosition"
    first = page.evaluate(f"{place}(document.querySelector('.tiles'))")
    assert first & 4, "alerts come before what else there is to read"
    lines = page.locator("[data-cursor=mart]")
    assert all(text in lines.inner_text() for text in ("1,203", "4 versions", "loader@ware"))
    expect(lines.locator(".warn")).to_have_count(1)  # nobody moved it for too long
    expect(page.locator("[data-checkpoint=monday]")).to_contain_text("export job")
    snap(page, "table-in-trouble")


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
    expect(empty.locator("pre")).to_have_text('[tables.orders]\nuri = "s3://lake/orders"')
    expect(page.locator("#notices")).to_be_empty()
    snap(page, "empty")
    running.answers.name_tables("orders")
    expect(page.locator("tr[data-table=orders]")).to_be_visible()


def test_trouble_with_the_page_itself_is_told_beside_the_last_data(
    page: Page, running: Running
) -> None:
    page.goto(f"{running.url}#/table/orders")
    expect(page.locator(".tiles")).to_be_visible()
    running.doorman.open = False
    link = page.locator("[data-state=session-ended]")
    link = link.get_by_role("link", name="Log in to Airflow")
    expect(link).to_be_visible()
    assert "%23%2Ftable%2Forders" in str(link.get_attribute("href"))
    snap(page, "session-ended")
    running.doorman.open = True
    notices = page.locator("#notices")
    expect(notices).to_be_empty()
    running.answers.config.write_text("[tables.orders]\nurl = 'x'\n")
    expect(notices).to_contain_text("unknown key 'tables.orders.url'")
    expect(page.locator(".tiles")).to_be_visible()
    snap(page, "error")
    running.stop()
    expect(notices).to_contain_text("did not answer. What is shown may be old.")
    expect(page.locator(".tiles")).to_be_visible()


@pytest.mark.parametrize("retention", [False, True])
def test_what_garbage_holds_and_what_piles_up(
    page: Page, running: Running, retention: bool
) -> None:
    """With a retention, jobs delete it."""

    def item(kind: str, size: int, action: str, reason: str) -> samples.Json:
        return {"kind": kind, "bytes": size, "action": action, "reason": reason, "path": "x"}

    items = [
        *[item("generation", 3 << 20, "keep", "checkpoint 'monday' of ann needs it")] * 12,
        *[item("generation", 2 << 20, "drop", "merged at every retained version")] * 3,
        *[item("lease_claim", 300, "delete", "superseded by newer claims")] * 40,
    ]
    report = {"table": "orders", "outcome": "done", "error": None, "items": items}
    running.answers.documents["garbage", "orders"] = report
    spare = {"generations": 12, "bytes": 36 * samples.MIB, "collected": retention}
    running.answers.put(samples.status("orders", reclaimable=spare))
    page.goto(f"{running.url}#/table/orders")
    section = page.locator("section", has=page.locator("#garbage-title"))
    expect(section).to_contain_text("12 generations (36 MiB) merged and indexed")
    piles = "Nothing deletes them: the table has no retention"
    (expect(section).not_to_contain_text if retention else expect(section).to_contain_text)(piles)
    page.get_by_role("button", name="List what is held, and why").click()
    rows = page.locator(".garbage tbody tr")
    expect(rows).to_have_count(3)
    held = re.compile(r"generation.*12.*36 MiB.*held.*monday", re.S)
    expect(rows.first).to_contain_text(held)
    snap(page, f"garbage-{retention}")


def test_the_freshness_target_is_shown_where_there_is_one(page: Page, running: Running) -> None:
    tables = '[tables.orders]\nuri = "s3://lake/x"\nfreshness = "60s"\n'
    tables += '[tables.inventory]\nuri = "s3://lake/y"\n[defaults]\nfreshness = "10m"\n'
    running.answers.config.write_text(tables)
    late = samples.shard(0, pending=2)
    running.answers.put(samples.status("orders", [late]), samples.history(10))
    page.goto(f"{running.url}#/table/orders")
    tile = page.locator(".tile", has_text="Freshness target")
    expect(tile).to_contain_text("60 s")
    expect(tile).to_contain_text(re.compile("late for 3 min; kept by 0 of the last 9 merges"))
    expect(page.locator(".alert")).to_contain_text("longer than the freshness target of 60 s")
    page.goto(f"{running.url}#/table/inventory")
    expect(page.locator(".tile", has_text="Freshness target")).to_contain_text("kept now")


def test_times_are_of_the_zone_that_was_chosen_in_airflow(
    browser: Browser, running: Running
) -> None:
    finished = "2026-11-21T12:00:00.000+00:00"
    running.answers.put(samples.status("orders"), [samples.run(finished_at=finished)])
    with opened(browser, timezone_id="America/New_York") as page:
        page.goto(f"{running.url}#/table/orders")
        time = page.locator("tr[data-run] time").first
        for stored, shown in (
            (None, "2026-11-21 07:00:00"),
            ("Asia/Kolkata", "2026-11-21 17:30:00"),
            ("UTC", "2026-11-21 12:00:00"),
            ("No/Where", "2026-11-21 07:00:00"),
        ):
            if stored:
                # As Airflow 3.3 stores it.
                page.evaluate("z => localStorage.setItem('timezone', JSON.stringify(z))", stored)
                page.reload()
            expect(time).to_have_text(shown)
        assert re.search("GMT|EST", str(time.get_attribute("title")))


def test_by_itself_it_follows_what_airflow_remembers_else_the_system(
    browser: Browser, running: Running
) -> None:
    with opened(browser, color_scheme="dark") as page:
        page.goto(running.url)
        expect(page.locator("body")).to_have_css("background-color", "rgb(17, 19, 22)")
        page.evaluate("localStorage.setItem('theme', 'light')")
        page.reload()
        expect(page.locator("body")).to_have_css("background-color", "rgb(245, 246, 248)")


# ---- what a reader does with it


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
    where = row.locator("td[data-label=Where]")
    expect(where).to_contain_text("spark · worker-3")
    assert re.search(r"@.*:\d+ \(start", str(where.get_attribute("title")))


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
    nothing = page.locator("[data-part=shards] .empty")
    expect(nothing).to_have_text("None of the 1,000 shards fits.")


def test_history_goes_back_to_all_run_records(page: Page, running: Running) -> None:
    past = samples.history(300, every_minutes=7)
    past[400].update(outcome="failed", exit_code=1, error="the store did not answer in time")
    running.answers.put(samples.status("orders"), past)
    page.goto(f"{running.url}#/table/orders")
    count, rows = page.locator("[data-part=run-count]"), page.locator("tr[data-run]")
    expect(count).to_have_text(f"1{TO}25 of 100 or more runs")
    for first in (26, 51, 76, 101, 126):
        page.get_by_role("button", name="Older").click()
        expect(count).to_contain_text(f"{first}{TO}{first + 24} of ")
    expect(count).to_have_text(f"126{TO}150 of 600 runs")
    page.get_by_label("Outcome").select_option("failed")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("the store did not answer in time")
    assert page.url.endswith("#/table/orders?outcome=failed")
    snap(page, "runs-that-failed")
    page.get_by_label("Outcome").select_option("")
    page.get_by_label("Job").select_option("index-catchup")
    expect(count).to_have_text(f"1{TO}25 of 300 runs")
    chosen = past[450]["run_id"]
    page.goto(f"{running.url}#/table/clicks")
    page.goto(f"{running.url}#/table/orders?run={chosen}")
    expect(rows).to_have_count(1)
    expect(rows).to_have_attribute("data-run", chosen)
    page.get_by_role("button", name="Show all runs").click()
    expect(count).to_have_text(f"1{TO}25 of 600 runs")


def test_plots_are_drawn_and_read_with_pointer_and_keys(page: Page, running: Running) -> None:
    page.goto(f"{running.url}#/table/orders")
    for key in ("backlog-generations", "backlog-bytes"):
        path = page.locator(f"[data-plot={key}] path.series")
        points = re.findall(r"[ML]([\d.]+) ([\d.]+)", path.get_attribute("d") or "")
        assert len(points) >= 7, key
        assert len({y for _, y in points}) >= 3, key
        texts = page.locator(f"[data-plot={key}] .axes text").all_text_contents()
        assert texts[0].startswith("0")
        assert any(re.fullmatch(r"\d\d:\d\d(:\d\d)?", text) for text in texts), texts
    for key in ("throughput-rows", "throughput-bytes"):
        bars = page.locator(f"[data-plot={key}] rect.bar").all()
        assert len(bars) == 24, key
        assert all(float(bar.get_attribute("height") or 0) > 0.5 for bar in bars)
    cut = """svg => [...svg.querySelectorAll(".axes text")].filter(text => {
        const [box, around] = [text.getBoundingClientRect(), svg.getBoundingClientRect()];
        return box.left < around.left || box.right > around.right + 1;
    }).map(text => text.textContent)"""
    for drawn in page.locator("[data-plot] .canvas svg").all():
        assert drawn.evaluate(cut) == []
    assert page.locator("[data-plot=storage] .stack rect").count() >= 3

    figure = page.locator("[data-plot=backlog-generations]")
    label = str(figure.locator("svg").get_attribute("aria-label"))
    told = r"Backlog, generations: 0 at .*; highest 15 at .*; \d+ points\."
    assert re.match(told, label), label
    reading = figure.locator(".reading")
    expect(reading).to_contain_text("now 0 · highest 15")
    figure.locator("svg").hover(position={"x": 62, "y": 60})
    expect(reading).to_contain_text(re.compile(r"^\d+ · .* · (before|after) [a-z-]+"))
    page.mouse.move(0, 0)
    expect(reading).to_contain_text("highest")
    figure.locator("svg").focus()
    page.keyboard.press("End")
    expect(reading).to_contain_text("0 · ")
    figure.get_by_text("Numbers").click()
    expect(figure.locator("tbody tr").first).to_contain_text("now")


def test_it_works_with_the_keyboard_alone(page: Page, running: Running) -> None:
    page.goto(running.url)
    expect(page.locator("tr[data-table='orders']")).to_be_visible()
    page.locator("#skip").focus()
    page.keyboard.press("Enter")
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('href')") == "#/table/orders":
            break
    page.keyboard.press("Enter")
    expect(page.locator(".titleline h2")).to_have_text("orders")
    assert page.evaluate("document.activeElement.id") == "main"


def test_it_stays_fresh_by_itself_and_leaves_the_reader_alone(page: Page, running: Running) -> None:
    page.goto(f"{running.url}#/table/orders")
    tile = page.locator(".tile", has_text="Pending").first
    expect(tile).to_contain_text("none")
    figure = page.locator("[data-plot=backlog-bytes]")
    figure.get_by_text("Numbers").click()
    figure.locator("svg").focus()
    before = page.evaluate("document.querySelectorAll('*').length")

    def put(pending: int, runs: int) -> None:
        status = samples.status("orders", [samples.shard(0, pending=pending)])
        running.answers.put(status, samples.history(runs, first=1))

    put(3, 25)
    expect(tile).to_contain_text("3")
    expect(figure.locator(".reading")).to_contain_text("9 MiB")
    assert figure.locator("details").get_attribute("open") is not None
    assert page.evaluate("document.activeElement.dataset.key") == "plot-backlog-bytes"
    # What moves on the screen does not pile up.
    looks = len(running.answers.calls)
    deadline = time.monotonic() + 60
    while len(running.answers.calls) < looks + 6 and time.monotonic() < deadline:
        page.wait_for_timeout(100)
    assert page.evaluate("document.querySelectorAll('*').length") < before * 1.5
    put(4, 25)
    page.click("#refresh")
    expect(tile).to_contain_text("4")
    expect(page.locator("#live")).to_contain_text("Updated. orders:")


# ---- the form, and what comes of it


def test_options_that_have_no_effect_are_off_and_say_what_they_need(
    page: Page, running: Running
) -> None:
    page.goto(f"{running.url}#/table/orders")
    page.get_by_role("button", name="Backfill…").first.click()
    dialog = page.locator("#backfill-dialog")
    for summary in dialog.locator("summary").all():
        summary.click()
    execute = dialog.get_by_label("Delete garbage")
    expect(execute).to_be_disabled()
    expect(execute).to_have_accessible_description("needs Garbage")
    dialog.get_by_role("checkbox", name="Garbage list").check()
    expect(execute).to_be_enabled()
    concurrency = dialog.locator("[name=concurrency]")
    expect(concurrency).to_have_accessible_description("needs all tables")
    dialog.get_by_role("checkbox", name="Merge").uncheck()
    for name in ("shards", "until_generation", "bytes_per_commit_max"):
        field = dialog.locator(f"[name={name}]")
        expect(field).to_have_accessible_description("needs Merge")
    expect(dialog.locator("[name=deadline]")).to_be_enabled()
    snap(page, "backfill-dialog")


def test_what_comes_of_it_is_told(page: Page, running: Running) -> None:
    running.rejection = Rejected(409, "the DAG memwal_backfill is paused; unpause it")
    running.run = {"state": "running", "ended": False, "failed": [], "tables": []}
    page.goto(f"{running.url}#/table/orders")
    row = page.locator("tr[data-shard]").first
    row.get_by_role("button").click()
    dialog = page.locator("#backfill-dialog")
    expect(dialog.locator("textarea")).to_have_value(str(row.get_attribute("data-shard")))
    expect(dialog.get_by_label("Dry run")).to_be_checked()
    dialog.get_by_role("button", name="Start").click()
    expect(dialog.locator(".notice.bad")).to_have_text(str(running.rejection))
    # It can be tried again.
    running.rejection = None
    dialog.get_by_role("button", name="Start").click()
    run = "/dags/memwal_backfill/runs/manual__1"
    expect(dialog.locator("#started-run")).to_have_attribute("href", run)
    expect(dialog.get_by_role("button", name="Started")).to_be_disabled()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    started = page.locator("[data-part=started]")
    expect(started).to_contain_text("Dry run of a backfill is under way · manual__1")
    snap(page, "backfill-under-way")
    page.reload()
    expect(started).to_contain_text("is under way")
    table = {"table": "orders", "outcome": "failed", "error": "no such bucket"}
    running.run = {"state": "failed", "ended": True, "failed": ["backfill"], "tables": [table]}
    expect(started).to_contain_text("Dry run of a backfill failed")
    expect(started).to_contain_text("failed: no such bucket; failed: backfill")
    expect(started.get_by_role("link", name="manual__1")).to_have_attribute("href", run)
    snap(page, "backfill-failed")
    started.get_by_role("button", name="Dismiss").click()
    expect(started).to_be_empty()
