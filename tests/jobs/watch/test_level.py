"""A table that is written all the time, and kept by a watch's jobs, does not grow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.day import ROUNDS, keep_table


@pytest.mark.nightly
def test_fragments_versions_files_and_bytes_stay_level(tmp_path: Path) -> None:
    seen = keep_table(tmp_path / "t")
    early, late = seen[ROUNDS // 4 : ROUNDS // 2], seen[-ROUNDS // 4 :]
    for name in seen[0]:
        assert max(s[name] for s in late) <= 1.2 * max(s[name] for s in early), name
