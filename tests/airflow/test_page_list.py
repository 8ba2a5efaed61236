"""The page's list of two hundred tables, in a real browser."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from memwal_airflow.page.app import make_clock
from playwright.sync_api import Browser, Locator, Page, expect

from tests.airflow import page_samples as samples
from tests.airflow.page_browser import Running, opened, snap
from tests.airflow.test_page_render import TO

pytestmark = pytest.mark.nightly

TABLES = 200


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    before, samples.NOW = samples.NOW, make_clock().now()
    with Running(tmp_path_factory.mktemp("lake"), refresh_seconds=4) as made:
        tables = samples.lake(TABLES)
        made.answers.name_tables(**{t["table"]: t.get("uri", "s3://lake/misc") for t, _ in tables})
        for status, runs in tables:
            made.answers.put(status, runs)
        made.feed.seen()
        while made.feed.seen().busy:
            time.sleep(0.02)
        yield made
    samples.NOW = before


@pytest.fixture
def visit(browser: Browser, lake: Running) -> Iterator[Callable[..., Page]]:
    """`visit("#/?page=2")`: the window goes there."""
    with opened(browser, permissions=["clipboard-read", "clipboard-write"]) as window:

        def go(place: str = "#/") -> Page:
            window.goto(lake.url + place)
            expect(window.locator(".range p")).not_to_be_empty()
            return window

        yield go


def names(page: Page) -> list[str]:
    return page.locator("tr[data-table] th a").all_text_contents()


def query(page: Page) -> str:
    """The view, as the address has it."""
    return page.url.partition("#/?")[2]


def mark(page: Page, name: str) -> Locator:
    return page.locator(f"[data-mark={name}]")


def test_two_hundred_tables_come_in_pages(visit: Callable[..., Page]) -> None:
    page = visit()
    shown = page.locator(".range p")
    expect(shown).to_have_text(f"1{TO}50 of 200 tables")
    assert page.evaluate("document.documentElement.scrollHeight") < 3_500
    seen = names(page)
    for number in (2, 3, 4):
        page.get_by_role("button", name="Next").click()
        expect(shown).to_have_text(f"{number * 50 - 49}{TO}{number * 50} of 200 tables")
        # The reader goes on at the top of the new page.
        expect(shown).to_be_focused()
        expect(shown).to_be_in_viewport()
        seen += names(page)
    assert len(set(seen)) == TABLES
    expect(page.get_by_role("button", name="Next")).to_be_disabled()
    assert query(page) == "page=4"
    page.go_back()
    expect(shown).to_have_text(f"101{TO}150 of 200 tables")
    page.get_by_label("Rows on a page").select_option("500 rows")
    expect(page.locator("tr[data-table]")).to_have_count(TABLES)
    assert query(page) == "rows=500"


def test_the_columns_order_the_tables(visit: Callable[..., Page]) -> None:
    page = visit()
    head = page.locator("thead")
    expect(head.locator("[aria-sort]")).to_have_text("Health▼")
    head.get_by_role("button", name="Table").click()
    expect(head.locator("[aria-sort=ascending]")).to_contain_text("Table")
    expect(head.get_by_role("button", name="Table")).to_be_focused()
    assert names(page) == sorted(names(page), key=_natural)
    head.get_by_role("button", name="Table").click()
    expect(head.locator("[aria-sort=descending]")).to_contain_text("Table")
    assert query(page) == "sort=-name"
    assert names(page) == sorted(names(page), key=_natural, reverse=True)
    for column, key in (("Backlog", "backlog"), ("Index lag", "lag")):
        head.get_by_role("button", name=column).click()
        expect(head.locator("[aria-sort=descending]")).to_contain_text(column)
        assert query(page) == f"sort={key}"
        cells = page.locator(f"td[data-label='{column}']").all_inner_texts()
        numbers = [int(cell.split()[0]) for cell in cells if "generation" in cell]
        assert len(numbers) >= 40
        assert numbers == sorted(numbers, reverse=True)
    page.get_by_role("button", name="Oldest").click()
    expect(page.locator("td[data-label='Oldest']").first).to_contain_text("h")
    # A table of which nothing is known is last either way.
    for sort in ("backlog", "-backlog"):
        visit(f"#/?sort={sort}&page=4")
        last = page.locator("tr[data-table]").last
        expect(last).to_have_attribute("data-state", "unreachable")


def _natural(name: str) -> tuple[str, int]:
    word = name.rstrip("0123456789")
    return word, int(name[len(word) :])


def test_tables_are_narrowed_by_state_by_trouble_and_by_text(visit: Callable[..., Page]) -> None:
    page = visit("#/?page=3")
    shown, rows = page.locator(".range p"), page.locator("tr[data-table]")
    page.locator(".chip.state-held").click()
    expect(shown).to_have_text("5 of 200 tables")
    assert {row.get_attribute("data-state") for row in rows.all()} == {"held"}
    page.locator(".chip.state-broken").click()
    expect(shown).to_have_text("9 of 200 tables")
    expect(page.locator(".chip[aria-pressed=true]")).to_have_count(2)
    assert query(page) == "state=held,broken"
    page.get_by_role("searchbox").fill("iot_clicks")
    expect(shown).to_have_text("4 of 200 tables")
    page.get_by_role("searchbox").fill("nothing like it")
    expect(page.locator(".none .empty")).to_have_text("No table fits the filter.")
    expect(page.locator("#live")).to_have_text("0 of 200 tables.")
    page.get_by_role("link", name="Show all").click()
    expect(shown).to_have_text(f"1{TO}50 of 200 tables")
    expect(page.get_by_role("searchbox")).to_have_value("")
    page.go_back()
    expect(page.get_by_role("searchbox")).to_have_value("nothing like it")


def test_the_summary_counts_troubles_and_leads_to_them(visit: Callable[..., Page]) -> None:
    page = visit()
    expect(page.locator("#freshness")).to_contain_text("at 193 of 200 tables")
    expected = {"late": 4, "failing": 9, "unreachable": 3, "abandoned": 4, "held": 8}
    for name, number in expected.items():
        expect(mark(page, name)).to_have_text(f"{number} {name}")
    mark(page, "unreachable").click()
    expect(page.locator("tr[data-table]")).to_have_count(3)
    expect(page.locator("td[data-label=Seen]").first).to_contain_text("next try in")
    mark(page, "unreachable").click()
    mark(page, "abandoned").click()
    expect(page.locator("tr[data-table]")).to_have_count(4)
    expect(mark(page, "abandoned")).to_be_focused()
    mark(page, "late").click()
    expect(page.locator("tr[data-table]")).to_have_count(8)
    assert query(page) == "with=abandoned,late"


def test_groups_have_a_head_that_tells_how_they_are(visit: Callable[..., Page]) -> None:
    page = visit("#/?group=name&sort=name")
    groups = page.locator("tr.group")
    expect(groups.first).to_contain_text("40 tables")
    heads = [group.get_attribute("data-group") for group in groups.all()]
    page.get_by_role("button", name="Next").click()
    expect(groups.first).to_contain_text(f"{heads[-1]} (continued)")
    page.get_by_label("Groups").select_option("By folder")
    expect(page.locator("tr.group").first).to_have_attribute("data-group", "s3://lake/misc")
    assert query(page) == "sort=name&group=folder"


def test_nonsense_in_the_address_falls_back(visit: Callable[..., Page]) -> None:
    nonsense = "q=%E0%A4%A&state=toString,held,x&with=&sort=-constructor&group=__proto__&rows=7"
    page = visit(f"#/?{nonsense}&page=-1")
    expect(page.get_by_role("searchbox")).not_to_have_value("")
    page.get_by_role("searchbox").fill("")
    expect(page.locator("tr[data-table]")).to_have_count(5)
    assert query(page) == "state=held"
    visit("#/?page=99999")
    expect(page.locator(".range p")).to_have_text(f"151{TO}200 of 200 tables")
    page.get_by_role("button", name="Previous").click()
    assert query(page) == "page=3"


def test_a_view_is_a_link_and_a_table_leads_back_to_it(visit: Callable[..., Page]) -> None:
    view = "#/?q=sales&state=ok&sort=-name&group=name&rows=100"
    page = visit(view)
    link = page.get_by_role("link", name="Link to this view")
    address = link.evaluate("(link) => link.href")
    assert address.endswith(view)
    first = names(page)
    page.locator("tr[data-table] a").first.click()
    expect(page.locator(".titleline h2")).to_have_text(first[0])
    page.get_by_role("link", name="All tables").click()
    expect(page.locator("tr[data-table]")).to_have_count(len(first))
    assert page.url.endswith(view)
    page.reload()
    expect(page.locator("tr[data-table]")).to_have_count(len(first))
    assert names(page) == first
    link.click()
    expect(page.get_by_role("link", name="Link copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == address


def test_who_goes_on_while_typing_is_not_brought_back(visit: Callable[..., Page]) -> None:
    page = visit()
    page.evaluate("""() => {
        document.querySelector(".search").value = "x";
        document.querySelector(".search").dispatchEvent(new Event("input"));
        location.hash = "#/table/orders4";
    }""")
    expect(page.locator(".titleline h2")).to_have_text("orders4")
    page.wait_for_timeout(400)
    assert page.url.endswith("#/table/orders4")


def test_rows_that_stay_the_same_are_left_alone(visit: Callable[..., Page], lake: Running) -> None:
    page = visit("#/?q=sales")
    name = names(page)[-1]
    page.evaluate("document.querySelectorAll('tr[data-table]').forEach((row) => { row.mine = 1; })")
    before = lake.answers.documents["status", name]
    row = page.locator(f"tr[data-table='{name}']")
    row.get_by_role("link").focus()
    lake.answers.put(samples.status(name, [samples.shard(1, outcome="failed", error="bad magic")]))
    lake.feed.ask_refresh(name)
    expect(row).to_have_attribute("data-state", "broken")
    expect(row.get_by_role("link")).to_be_focused()
    lake.answers.put(before)
    rows = page.locator("tr[data-table]")
    assert rows.evaluate_all("(rows) => rows.filter((row) => row.mine).length") == rows.count() - 1


VIEWS = {
    "all": "#/",
    "troubles": "#/?with=late,unreachable,abandoned",
    "groups": "#/?group=name&sort=name",
    "lag": "#/?sort=lag&page=2",
    "nothing": "#/?q=nothing+like+it&state=held",
}


def test_it_fits_and_its_heads_stay(visit: Callable[..., Page]) -> None:
    for name, place in VIEWS.items():
        page = visit(place)
        expect(page.locator(".none .empty, tr[data-table] >> nth=0")).to_be_visible()
        snap(page, f"list-{name}")
    page = visit()
    page.locator("tr[data-table] >> nth=45").scroll_into_view_if_needed()
    expect(page.locator("#refresh")).to_be_in_viewport()
    expect(page.get_by_role("button", name="Index lag")).to_be_in_viewport()
