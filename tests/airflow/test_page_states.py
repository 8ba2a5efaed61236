"""Each state of a table's page in a real browser. Its screenshots are for people to look at: they
are in the folder that MEMWAL_SCREENSHOTS names, else in the test's own.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.airflow import page_samples as samples
from tests.airflow.test_page_render import TO, Running, browser, page, running

pytestmark = pytest.mark.browser
__all__ = ["browser", "page", "running"]

Snap = Callable[[Page, str], None]
SIZES = {"wide": (1360, 900), "narrow": (420, 900)}


@pytest.fixture
def snap(tmp_path: Path) -> Snap:
    """Takes a picture of the whole page: wide and narrow, light and dark."""
    folder = Path(os.environ.get("MEMWAL_SCREENSHOTS") or tmp_path)

    def take(page: Page, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            for size, (width, height) in SIZES.items():
                page.set_viewport_size({"width": width, "height": height})
                page.wait_for_function("w => document.documentElement.clientWidth <= w", arg=width)
                assert page.evaluate("document.documentElement.scrollWidth") <= width, name
                page.screenshot(path=folder / f"{name}-{size}-{scheme}.png", full_page=True)
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": 1360, "height": 900})

    return take


def test_trouble_is_told_first_with_its_age_and_what_to_do(
    page: Page, running: Running, snap: Snap
) -> None:
    gone = samples.shard(2, abandoned=True, unflushed_wal_entries=5, idle_seconds=7200.0)
    error = "shard manifest 7 can't be read: bad magic (MW-M01)"
    broken = samples.shard(1, outcome="failed", error=error)
    held = "the lease is held by worker-1:7 for merge since 04:05; wait, or `memwal lease break`"
    hole = f"shard {gone['shard_id']}: generation 7 is neither merged nor listed (MW-H01)"
    checkpoint = {
        "name": "monday",
        "state": "kept",
        "version": 7,
        "generations": 12,
        "cut": {},
        "holder": "export job",
        "created_at": samples.ago(days=3),
        "expires_at": samples.ago(days=-4),
        "tag": "x",
    }
    cursor = {
        "name": "mart",
        "version": 1203,
        "behind": 4,
        "moved_at": samples.ago(days=15),
        "holder": f"loader@{'warehouse.' * 6}internal",
        "transaction": None,
    }
    samples.put(
        running.folder,
        samples.status(
            "users",
            [samples.shard(0, pending=5), broken, gone],
            outcome="partial",
            error="x",
            warnings=[hole],
            checkpoints=[checkpoint],
            cursors=[cursor],
            backup={
                "uri": "s3://copies/users",
                "name": "monday",
                "version": 7,
                "made_at": samples.ago(days=3),
                "bytes": 5 * samples.MIB,
            },
            backup_age_seconds=3 * 86_400.0,
        ),
        [samples.run("merge", n, outcome="failed", exit_code=4, error=held) for n in (3, 8, 13)]
        + samples.history(20, first=20),
    )
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
    first = page.evaluate(
        "document.querySelector('.alert').compareDocumentPosition(document.querySelector('.tiles'))"
    )
    assert first & 4, "alerts come before what else there is to read"
    lines = page.locator("[data-cursor=mart]")
    assert all(text in lines.inner_text() for text in ("1,203", "4 versions", "loader@ware"))
    expect(lines.locator(".warn")).to_have_count(1)  # nobody moved it for too long
    expect(page.locator("[data-checkpoint=monday]")).to_contain_text("export job")
    snap(page, "table-in-trouble")


def test_history_goes_back_to_all_run_records(page: Page, running: Running, snap: Snap) -> None:
    past = samples.history(300, every_minutes=7)
    past[400].update(outcome="failed", exit_code=1, error="the store did not answer in time")
    samples.put(running.folder, samples.status("orders"), past)
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


def test_times_are_of_the_zone_that_was_chosen_in_airflow(
    browser: Browser, running: Running
) -> None:
    context = browser.new_context(timezone_id="America/New_York")
    page = context.new_page()
    finished = "2026-11-21T12:00:00.000+00:00"
    samples.put(running.folder, samples.status("orders"), [samples.run(finished_at=finished)])
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
    assert "GMT" in str(time.get_attribute("title")) or "EST" in str(time.get_attribute("title"))
    context.close()


def test_what_garbage_holds_is_listed_when_asked_for(
    page: Page, running: Running, snap: Snap
) -> None:
    def item(kind: str, size: int, action: str, reason: str) -> samples.Json:
        return {"kind": kind, "bytes": size, "action": action, "reason": reason, "path": "x"}

    items = [
        *[item("generation", 3 << 20, "keep", "checkpoint 'monday' of ann needs it")] * 12,
        *[item("generation", 2 << 20, "drop", "merged at every retained version")] * 3,
        *[item("lease_claim", 300, "delete", "superseded by newer claims")] * 40,
    ]
    report = {"table": "orders", "outcome": "done", "error": None, "items": items}
    (running.folder / "orders.garbage.json").write_text(json.dumps(report))
    page.goto(f"{running.url}#/table/orders")
    page.get_by_role("button", name="List what is held, and why").click()
    rows = page.locator(".garbage tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text(re.compile(r"generation.*12.*36 MiB.*held.*monday", re.S))
    snap(page, "garbage-held")


@pytest.mark.parametrize("retention", [False, True])
def test_what_piles_up_is_told_where_nothing_deletes_it(
    page: Page, running: Running, snap: Snap, retention: bool
) -> None:
    """With a retention, jobs delete it."""
    spare = {"generations": 12, "bytes": 36 * samples.MIB, "collected": retention}
    samples.put(running.folder, samples.status("orders", reclaimable=spare), [])
    page.goto(f"{running.url}#/table/orders")
    section = page.locator("section", has=page.locator("#garbage-title"))
    expect(section).to_contain_text("12 generations (36 MiB) merged and indexed")
    piles = "Nothing deletes them: the table has no retention"
    if retention:
        expect(section).not_to_contain_text(piles)
    else:
        expect(section).to_contain_text(piles)
        snap(page, "piles-up")


def test_the_freshness_target_is_shown_where_there_is_one(page: Page, running: Running) -> None:
    file = running.folder / "memwal.toml"
    file.write_text(
        file.read_text().replace('"orders"]\n', '"orders"]\nfreshness = "60s"\n')
        + '[defaults]\nfreshness = "10m"\n'
    )
    late = samples.shard(0, pending=2)
    samples.put(running.folder, samples.status("orders", [late]), samples.history(10))
    page.goto(f"{running.url}#/table/orders")
    tile = page.locator(".tile", has_text="Freshness target")
    expect(tile).to_contain_text("60 s")
    expect(tile).to_contain_text(re.compile("late for 3 min; kept by 0 of the last 9 merges"))
    expect(page.locator(".alert")).to_contain_text("longer than the freshness target of 60 s")
    page.goto(f"{running.url}#/table/inventory")
    expect(page.locator(".tile", has_text="Freshness target")).to_contain_text("kept now")


def test_a_first_look_is_under_way(page: Page, running: Running, snap: Snap) -> None:
    page.goto(f"{running.url}#/table/hangs-a")
    expect(page.locator("[data-state=first-look]")).to_be_visible()
    snap(page, "first-look")


def test_no_table_yet_is_no_error_and_says_what_to_add(
    page: Page, running: Running, snap: Snap
) -> None:
    file = running.folder / "memwal.toml"
    file.write_text("")
    page.goto(running.url)
    empty = page.locator("[data-state=empty]")
    expect(empty).to_contain_text(f"Add this to {file}")
    expect(empty.locator("pre")).to_have_text('[tables.orders]\nuri = "s3://lake/orders"')
    expect(page.locator("#notices")).to_be_empty()
    snap(page, "empty")
    file.write_text('[tables.orders]\nuri = "s3://lake/orders"\n')
    expect(page.locator("tr[data-table=orders]")).to_be_visible()


def test_trouble_with_the_page_itself(page: Page, running: Running, snap: Snap) -> None:
    page.goto(f"{running.url}#/table/orders")
    expect(page.locator(".tiles")).to_be_visible()
    running.doorman.open = False
    link = page.locator("[data-state=session-ended]").get_by_role("link", name="Log in to Airflow")
    expect(link).to_be_visible()
    assert "%23%2Ftable%2Forders" in str(link.get_attribute("href"))
    snap(page, "session-ended")
    running.doorman.open = True
    expect(page.locator("#notices")).to_be_empty()
    (running.folder / "memwal.toml").write_text("[tables.orders]\nurl = 'x'\n")
    expect(page.locator("#notices")).to_contain_text("unknown key 'tables.orders.url'")
    snap(page, "error")


def open_dialog(page: Page, running: Running) -> Locator:
    page.goto(f"{running.url}#/table/orders")
    page.get_by_role("button", name="Backfill…").first.click()
    return page.locator("#backfill-dialog")


def test_options_that_have_no_effect_are_off_and_say_what_they_need(
    page: Page, running: Running, snap: Snap
) -> None:
    dialog = open_dialog(page, running)
    for summary in dialog.locator("summary").all():
        summary.click()
    execute = dialog.get_by_label("Delete garbage")
    expect(execute).to_be_disabled()
    expect(execute).to_have_accessible_description("needs Garbage")
    dialog.get_by_role("checkbox", name="Garbage list").check()
    expect(execute).to_be_enabled()
    expect(dialog.locator("[name=concurrency]")).to_have_accessible_description("needs all tables")
    dialog.get_by_role("checkbox", name="Merge").uncheck()
    for name in ("shards", "until_generation", "bytes_per_commit_max"):
        expect(dialog.locator(f"[name={name}]")).to_have_accessible_description("needs Merge")
    expect(dialog.locator("[name=deadline]")).to_be_enabled()
    snap(page, "backfill-dialog")


def test_what_comes_of_a_backfill_is_told_on_the_page(
    page: Page, running: Running, snap: Snap
) -> None:
    running.run = {"state": "running", "ended": False, "failed": [], "tables": []}
    dialog = open_dialog(page, running)
    expect(dialog.get_by_label("Dry run")).to_be_checked()
    dialog.get_by_role("button", name="Start").click()
    expect(dialog.get_by_role("button", name="Started")).to_be_disabled()
    page.keyboard.press("Escape")
    started = page.locator("[data-part=started]")
    expect(started).to_contain_text("Dry run of a backfill is under way · manual__1")
    snap(page, "backfill-under-way")
    page.reload()
    expect(started).to_contain_text("is under way")
    table = {"table": "orders", "outcome": "failed", "error": "no such bucket"}
    running.run = {"state": "failed", "ended": True, "failed": ["backfill"], "tables": [table]}
    expect(started).to_contain_text("Dry run of a backfill failed")
    expect(started).to_contain_text("failed: no such bucket; failed: backfill")
    link = started.get_by_role("link", name="manual__1")
    expect(link).to_have_attribute("href", "/dags/memwal_backfill/runs/manual__1")
    snap(page, "backfill-failed")
    started.get_by_role("button", name="Dismiss").click()
    expect(started).to_be_empty()
