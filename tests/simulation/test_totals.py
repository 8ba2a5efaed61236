"""Runs add up: the next one starts where the last ended, and the page says what the file does."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.simulation import totals
from tests.simulation.explore import Explored
from tests.simulation.totals import Totals, find_layer


def test_the_page_has_what_the_file_has() -> None:
    assert Totals.load().table() in totals.PAGE.read_text()


def test_a_run_is_added(tmp_path: Path) -> None:
    file, page = tmp_path / "totals.json", tmp_path / "README.md"
    shutil.copy(totals.FILE, file)
    shutil.copy(totals.PAGE, page)
    before, more = Totals.load(file), Totals.load(file)
    run = Explored(seeds=7, steps=1000, checks=50, failures={before.next_seed: "5: lost\n"})
    run.injected["delay"] += 3

    more.add(run)
    more.store(file, page)

    after = Totals.load(file)
    assert (after.next_seed, after.seeds) == (before.next_seed + 7, before.seeds + 7)
    assert (after.steps, after.audits) == (before.steps + 1000, before.audits + 50)
    assert after.injected["delay"] == before.injected["delay"] + 3
    assert after.found["invariant 5"] == before.found["invariant 5"] + 1
    assert after.table() in page.read_text()
    assert before.table() not in page.read_text()


def test_a_failure_is_of_an_invariant_a_command_or_neither() -> None:
    assert find_layer("trace\ntests.simulation.scheduler.Violation: 7: position 3") == "invariant 7"
    assert find_layer("status: merged 3, not 4") == "status"
    assert find_layer("boom") == "others"
