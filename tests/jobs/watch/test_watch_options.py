"""What a table is held to, by its own settings and the watch's options."""

from __future__ import annotations

from typing import Any

import pytest

from memwal.cli.requests import parse_duration
from memwal.cli.watch import hold
from memwal.config import ResolvedTable, Settings, WatchSettings
from memwal.jobs.watch.job import WatchOptions, choose_watch_limits
from memwal.jobs.watch.request import WatchRequest


def table(name: str, **settings: Any) -> ResolvedTable:
    return ResolvedTable(
        name=name, uri=f"/{name}", settings=Settings(**settings), storage_options={}
    )


@pytest.mark.parametrize(
    ("configured", "flag", "days"), [(None, "1d", 1), (7, "1d", 7), (7, "9d", 9), (7, None, 7)]
)
def test_a_flag_keeps_versions_longer_than_configured_but_not_shorter(
    configured: int | None, flag: str | None, days: int
) -> None:
    seconds = None if configured is None else configured * 86_400.0
    asked = WatchRequest(retention_seconds=None if flag is None else parse_duration(flag, "it"))
    held = hold(table("t", retention=seconds), asked)
    assert held.settings.retention == days * 86_400


def test_rounds_on_an_object_store_wait_and_so_more_run_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    here, there = table("t"), table("t").model_copy(update={"uri": "s3://bucket/t"})

    def count(*tables: ResolvedTable, **settings: int) -> int:
        return choose_watch_limits(WatchSettings(**settings), tables).rounds_max

    assert (count(here), count(here, there), count(there, workers=1)) == (2, 4, 1)
    monkeypatch.setattr("os.cpu_count", lambda: 32)
    assert (count(here), count(there)) == (4, 4)


@pytest.mark.parametrize(("engine", "large"), [(None, [True, False]), ("spark", [True, True])])
def test_an_engine_that_one_table_asks_for_is_not_asked_for_by_the_others(
    engine: Any, large: list[bool]
) -> None:
    """Else all of them would wait for the one process that has a JVM."""
    tables = [table("one", engine="spark"), table("other")]
    options = WatchOptions(
        tables=tables,
        engine=engine,
        settings=WatchSettings(),
        events=None,  # type: ignore[arg-type]
    )
    assert [options.choose_target(t).target.is_large(1, 1000) for t in tables] == large


def test_a_watch_s_processes_share_a_store_s_requests() -> None:
    """The one that looks, those for small rounds, and the one for large rounds."""
    rate = {"requests_per_second_max": "120"}
    given = table("t").model_copy(update={"uri": "s3://bucket/t", "storage_options": rate})
    options = WatchOptions(
        tables=[given],
        settings=WatchSettings(workers=2),
        events=None,  # type: ignore[arg-type]
    )
    shared = options.choose_target(given).resolved.storage_options
    assert float(shared["requests_per_second_max"]) == 120 / 4
