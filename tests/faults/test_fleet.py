"""One `memwal watch` over healthy tables that are written to, and beside them sick ones."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import lance
import pytest

from bench.flushing import BASE_ROWS, DIM, Flushing
from bench.tables import make_base, new_shards
from memwal.run.stores import open_stores
from tests.support.sick_tables import BIG, DEADLY, SILENT, SickTables
from tests.support.watching import Watch

pytestmark = [pytest.mark.nightly, pytest.mark.races]

HEALTHY = 20
OBJECTS = 20_000
WRITING_SECONDS = 10.0
SECONDS_MAX = 180.0


def make_tables(folder: Path, count: int) -> dict[str, Path]:
    """Tables with an index each, written in one shard each; copies of one."""
    origin = folder / "origin"
    make_base(origin, BASE_ROWS, dim=DIM)
    lance.dataset(str(origin)).create_scalar_index("id", "BTREE")
    return {f"t{n}": Path(shutil.copytree(origin, folder / f"t{n}")) for n in range(count)}


def find_pending(tables: dict[str, Path]) -> dict[str, int]:
    """How many generations of each table are not merged, of those that have any."""
    views = {name: open_stores(str(path), {}).views.table() for name, path in tables.items()}
    counts = {n: sum(len(shard.pending) for shard in v.shards) for n, v in views.items()}
    return {name: count for name, count in counts.items() if count}


def test_sick_tables_take_no_healthy_one_s_turn(tmp_path: Path) -> None:
    tables = make_tables(tmp_path, HEALTHY)
    written = [(str(path), shard) for path in tables.values() for shard in new_shards(1)]
    config = tmp_path / "memwal.toml"
    with SickTables(tmp_path, objects=OBJECTS) as sick:
        lines = [f'[tables.{name}]\nuri = "{path}"\n' for name, path in tables.items()]
        config.write_text("".join([*lines, sick.config]))
        words = ["--all", "--config", config, "--json", "--freshness", "6s", "--every", "1s"]
        with Watch(words, tmp_path) as watch:
            with Flushing(written, HEALTHY / 2):
                time.sleep(WRITING_SECONDS)

            def told(table: str, event: str) -> list[dict[str, Any]]:
                return [e for _, e in watch.events if (e["table"], e["event"]) == (table, event)]

            def find_missed() -> list[str]:
                unmerged = [name for name in (*tables, BIG) if not told(name, "merge")]
                quiet = [
                    n for n, least in ((SILENT, 1), (DEADLY, 2)) if len(told(n, "error")) < least
                ]
                return [*unmerged, *quiet, *find_pending(tables)]

            deadline = time.monotonic() + SECONDS_MAX
            while missed := find_missed():
                assert watch.ended_with() is None, watch.stderr()
                assert time.monotonic() < deadline, f"{missed}; {watch.stderr()[-2000:]}"
                time.sleep(0.2)
            ran_seconds = time.time() - watch.events[0][0]
        deaths, away = told(DEADLY, "error"), told(SILENT, "error")
        assert all("SIGKILL" in e["message"] for e in deaths)
        for errors in (deaths, away):  # left alone for longer each time
            assert [e["failures"] for e in errors] == list(range(1, len(errors) + 1))
            assert all(e["retry_seconds"] > 2 ** (e["failures"] - 1) * 0.9 for e in errors)
        assert 2 ** (len(sick.killer.killed_at) - 2) < ran_seconds
        assert len(sick.silent.connections) < ran_seconds
        assert not told(BIG, "error") and not any(told(name, "error") for name in tables)
        assert find_pending({DEADLY: tmp_path / DEADLY})
