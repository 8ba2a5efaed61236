"""What status and verify tell of rows that expire."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from memwal.jobs.status.job import run_status
from memwal.rows.expire import EXPIRE_KEY, make_expire
from tests.jobs.status.told import checked, told
from tests.support.builders import Table, make_table

pytestmark = pytest.mark.integration

CHECK = "rows that expire"
EXPIRE = make_expire("at", 90 * 86_400)


def make(path: Path, text: str | None = EXPIRE.as_text()) -> Table:
    table = make_table(path / "t", rows=[1], columns=[pa.field("at", pa.timestamp("us"))])
    if text is not None:
        table.dataset.update_config({EXPIRE_KEY: text})
    return table


def test_the_setting_is_shown(tmp_path: Path) -> None:
    table = make(tmp_path)
    for expire in (EXPIRE, None):
        status = told(run_status, table, expire=expire)
        assert status.expire == {"column": "at", "after_seconds": 90 * 86_400}
        assert not status.warnings
    assert checked(table, CHECK).ok is True


def test_a_configuration_that_is_not_stored_is_a_warning(tmp_path: Path) -> None:
    other = make_expire("at", 5)
    assert "memwal init t" in told(run_status, make(tmp_path / "1"), expire=other).warnings[-1]
    bare = make(tmp_path / "2", None)
    assert "by nothing" not in "".join(told(run_status, bare).warnings)
    status = told(run_status, bare, expire=EXPIRE)
    assert (status.expire, checked(bare, CHECK)) == (None, None)
    assert "by the table by nothing" in status.warnings[-1]


def test_a_setting_that_does_not_fit_is_found(tmp_path: Path) -> None:
    table = make(tmp_path)
    table.dataset.drop_columns(["at"])
    assert checked(table, CHECK).ok is False
    assert "MW-P16" in checked(table, CHECK).detail
    newer = make(tmp_path / "newer", '{"format": 2}')
    assert told(run_status, newer).expire == {"unreadable": '{"format": 2}'}
    assert checked(newer, CHECK).ok is None
