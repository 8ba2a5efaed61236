"""Where the rows of `top` come from, and the screen that they are on: with tables of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from memwal.errors import StoreUnavailable
from memwal.jobs.top.apply import (
    LOOK_SECONDS_MAX,
    MetricsSource,
    Scrape,
    TableSource,
    look_once,
    show_live,
)
from memwal.jobs.top.plan import Asked, Row, Sample, Seen
from memwal.testing import ManualClock
from tests.jobs.watch.worlds import SHARD, FakeTable, World

SECOND = 10**9


def make(*names: str) -> tuple[World, TableSource]:
    world = World(tables={name: FakeTable(name=name) for name in names})
    watched = [world.watched(name) for name in names]
    return world, TableSource(watched, world, world.clock, 2.0)


def find(seen: Seen, table: str) -> Row:
    (row,) = (row for row in seen.rows if row.table == table)
    return row


def test_a_look_each_so_often() -> None:
    world, source = make("a", "b")
    for _ in range(10):
        source.turn()
        world.clock.advance(0.5)
    assert world.looked == [(0.0, "a"), (0.0, "b"), (2.0, "a"), (2.0, "b"), (4.0, "a"), (4.0, "b")]
    assert source.requests == {"list": 6}
    assert source.see().requests_per_second == 6 / 4.5


def test_a_table_that_never_answers_holds_up_nobody() -> None:
    world, source = make("a", "hung")
    world.hung.add("/hung")
    source.turn()
    source.turn()
    assert find(source.see(), "a").version == 1
    assert find(source.see(), "hung") == Row(table="hung")
    world.clock.advance(LOOK_SECONDS_MAX + 1)
    source.turn()
    seen = source.see()
    assert find(seen, "hung").error == "a look has taken 16 s so far"
    assert find(seen, "a").error is None
    assert [name for _, name in world.looked] == ["a", "hung", "a"]
    world.tables["a"].flush(world.clock, ago=3.0)
    world.clock.advance(2.0)
    source.turn()
    source.turn()
    assert find(source.see(), "a").pending_generations == 1


def test_once_takes_two_looks_for_the_rates() -> None:
    world, source = make("a")
    world.tables["a"].flush(world.clock)

    @dataclass
    class Merging(ManualClock):
        """Between the two looks, the generation is merged, of one row."""

        def sleep(self, seconds: float) -> None:
            world.clock.advance(seconds)
            if len(world.looked) == 1 and world.clock.monotonic_seconds() > 1:
                world.tables["a"].merged = {SHARD: 1}

    seen = look_once(source, Merging())
    assert len(world.looked) == 2
    assert 0.4 < (seen.rows_per_second or 0.0) < 0.6
    assert find(seen, "a").needs == ()


@dataclass
class Scraped:
    """Answers in turn; nothing comes while there is none."""

    answers: list[Scrape]
    asked: int = 0
    place: str = "http://there/metrics"

    def start(self) -> None:
        self.asked += 1

    def collect(self) -> Sequence[Scrape]:
        return [self.answers.pop(0)] if self.asked and self.answers else []


def scrape(requests: float, rows: float) -> Scrape:
    return Scrape(
        [
            Sample("memwal_requests_total", {"operation": "get"}, requests),
            Sample("memwal_rows_total", {"job": "merge", "kind": "inserted"}, rows),
            Sample("memwal_pending_generations", {"table": "t"}, 3.0),
            Sample("memwal_merged_rows", {"table": "t"}, rows / 2),
        ]
    )


def test_a_watch_s_counters_give_its_rates() -> None:
    clock = ManualClock()
    scraper = Scraped([scrape(100, 7)])
    source = MetricsSource(scraper=scraper, clock=clock, every_seconds=2.0)
    source.turn()
    source.turn()
    assert (scraper.asked, source.is_complete) == (1, False)
    assert source.see().requests_per_second is None
    clock.advance(2.0)
    scraper.answers.append(scrape(110, 27))
    source.turn()
    assert source.is_complete
    seen = source.see()
    assert (seen.requests_per_second, seen.rows_per_second) == (5.0, 10.0)
    assert seen.dollars is not None and round(seen.dollars, 3) == 5.184
    assert seen.rows == [Row(table="t", pending_generations=3, rows_per_second=5.0)]


def test_what_was_read_last_stays_beside_what_is_wrong_now() -> None:
    clock = ManualClock()
    away = StoreUnavailable("away")
    scraper = Scraped([scrape(1, 1), Scrape(error=away)])
    source = MetricsSource(scraper=scraper, clock=clock, every_seconds=2.0)
    for _ in range(3):
        source.turn()
        clock.advance(2.0)
    seen = source.see()
    assert (seen.problem, len(seen.rows)) == (away, 1)
    scraper.answers.append(scrape(2, 2))
    source.turn()
    assert source.see().problem is None


@dataclass
class FakeScreen:
    """Presses keys, one a turn."""

    keys: list[str]
    lines: int = 2
    drawn: list[tuple[list[str], Asked]] = field(default_factory=list)

    def draw(self, rows: Sequence[Row], seen: Seen, asked: Asked) -> None:
        self.drawn.append(([row.table for row in rows], asked))

    def read_keys(self, seconds: float) -> Sequence[str]:
        return [self.keys.pop(0)]


def test_the_screen_shows_what_is_asked_for_until_somebody_quits() -> None:
    _, source = make("b", "a", "c")
    screen = FakeScreen(["s", "r", "j", "/", "c", "enter", "q"])
    show_live(source, screen, Asked())
    names, asked = screen.drawn[-1]
    assert names == ["c"]
    assert asked == replace(Asked(), sort="table", reverse=True, text="c")
    assert [names for names, _ in screen.drawn[1:4]] == [["a", "b", "c"], *[["c", "b", "a"]] * 2]
    assert screen.drawn[3][1].first == 1
