"""Ingests of operands, killed once in every phase; `ingest_kills.py` does it as often as asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.ingest_kills import IngestKills
from tests.support.ingest_killed import PHASES

pytestmark = [pytest.mark.integration, pytest.mark.races]


def test_operands_of_ingests_that_are_killed_in_every_phase_count_once(tmp_path: Path) -> None:
    killing = IngestKills(tmp_path, seed=7)
    killing.run(len(PHASES) + 1)
    assert {*killing.kills} == {*PHASES}
    assert killing.finished >= 1
