"""One look at the page in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.airflow.page_browser import Running
from tests.airflow.test_page_render import page, running

__all__ = ["page", "running"]


# Per table its state, its word and its badge, as they stand at one moment.
ROWS = """(rows) => rows.map((row) => {
    const badge = row.querySelector(".state");
    return [row.dataset.state, badge.innerText.trim(), badge.querySelector("svg").innerHTML];
})"""


@pytest.mark.e2e
def test_tables_with_the_worst_first_and_one_of_them(page: Page, running: Running) -> None:
    states = {
        "refunds": "broken",
        "users": "broken",
        "hangs-a": "unreachable",
        "clicks": "due",
        "orders": "held",
        "inventory": "ok",
    }
    page.goto(running.url)
    for name, state in states.items():
        row = page.locator(f"tr[data-table='{name}']")
        expect(row).to_have_attribute("data-state", state)
    rows = page.locator("tr[data-table]").evaluate_all(ROWS)
    ranks = ["broken", "unreachable", "unknown", "lagging", "due", "held", "ok"]
    order = [state for state, _, _ in rows]
    assert order == sorted(order, key=ranks.index)
    assert all(word.lower() == state for state, word, _ in rows)
    shapes = {word: shape for _, word, shape in rows}
    assert len(set(shapes.values())) == len(shapes) == 6

    page.locator("tr[data-table='orders']").get_by_role("link", name="orders").click()
    expect(page.locator(".titleline h2")).to_have_text("orders")
    expect(page.locator("tr[data-shard]")).to_have_count(3)
    expect(page.locator("tr[data-run]")).to_have_count(25)
    expect(page.locator("[data-plot=backlog-bytes] path.series")).to_be_attached()
    page.get_by_role("link", name="All tables").click()
    expect(page.locator("tr[data-table='orders']")).to_be_visible()
