"""A short run of the soak (`watch_soak.py`), on local files: what is killed costs time only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.watch_soak import Plan, Soak

pytestmark = [pytest.mark.integration, pytest.mark.races]

FAULTS = ("worker killed", "watch killed")


def test_a_watch_keeps_tables_fresh_whatever_is_killed(tmp_path: Path) -> None:
    plan = Plan(
        seconds=0,
        seed=1,
        freshness_seconds=3.0,
        calm_seconds=0.5,
        faults=FAULTS,
        on_s3=(),
    )
    with Soak(plan, tmp_path) as soak:
        report = soak.run()
    assert [entry["fault"] for entry in report.faults] == list(FAULTS)
    assert report.checkpoints[-1]["writes"] > 50
