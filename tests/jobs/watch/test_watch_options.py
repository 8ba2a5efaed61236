"""What a table is held to, by its own settings and the watch's options."""

from __future__ import annotations

from typing import Any

import pytest

from memwal.config import ResolvedTable, Settings, WatchSettings
from memwal.jobs.watch.options import WatchOptions


def table(name: str, **settings: Any) -> ResolvedTable:
    return ResolvedTable(
        name=name, uri=f"/{name}", settings=Settings(**settings), storage_options={}
    )


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
