"""When rows expire: what may be asked for, what is stored, and which rows Lance finds by it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from memwal.errors import Refused, Unsupported, Usage
from memwal.model import ColumnInfo, TableView
from memwal.rows.expire import (
    EXPIRE_KEY,
    describe_expire,
    find_expire,
    find_horizon,
    make_expire,
    parse_expire,
)
from tests.support.views import make_view

DAY = 86_400
NOW = datetime(2026, 3, 1, 12, 30, 15, tzinfo=UTC)
CUT = int(NOW.timestamp()) * 10**9 + 999_999_999
TIMES = [
    pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "+00:00")
]


def view(kind: str = "timestamp[us]", text: str | None = None, name: str = "at") -> TableView:
    column = ColumnInfo(field_id=1, name=name, type_text=kind, nullable=True)
    text = make_expire(name, 90 * DAY).as_text() if text is None else text
    found = make_view(columns=(column,))
    return replace(found, manifest=replace(found.manifest, config={EXPIRE_KEY: text}))


@pytest.mark.integration
def test_lance_finds_what_is_older_than_the_cut(tmp_path: Path) -> None:
    horizon = NOW - timedelta(days=90)
    columns: dict[str, pa.Array] = {"id": pa.array(range(6))}
    for kind in (*TIMES, pa.date32(), pa.date64()):
        step = timedelta(days=1) if pa.types.is_date(kind) else timedelta(seconds=1)
        times = [horizon + place * step for place in (-50, -1, 0, 1, 50)]
        days = [time.date() if pa.types.is_date(kind) else time for time in times]
        columns[f"The {kind}"] = pa.array([*days, None], kind)
    base = lance.write_dataset(pa.table(columns), tmp_path / "t")
    for name, column in list(columns.items())[1:]:
        found = find_horizon(view(str(column.type), name=name), CUT)
        assert found is not None and found.before == horizon
        # The day of the horizon began before it.
        gone = [0, 1, 2] if pa.types.is_date(column.type) else [0, 1]
        kept = [n for n in range(6) if n not in gone]
        assert base.to_table(filter=found.expired)["id"].to_pylist() == gone, name
        assert base.to_table(filter=found.kept)["id"].to_pylist() == kept, name


def test_a_day_is_kept_whole_until_its_first_moment_is_too_old() -> None:
    at_midnight = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp()) * 10**9
    for cut, day in ((at_midnight, "2025-12-01"), (at_midnight + 10**9, "2025-12-02")):
        found = find_horizon(view("date32[day]"), cut)
        assert found is not None
        assert found.expired == f"`at` < date '{day}'"


def test_what_is_stored_is_read_again() -> None:
    expire = make_expire("at", 90 * DAY)
    assert parse_expire(expire.as_text()) == expire
    newer = json.dumps({**json.loads(expire.as_text()), "note": "of a newer build"})
    assert parse_expire(newer) == expire
    assert find_expire(view()) == expire
    assert describe_expire(view()) == {"column": "at", "after_seconds": 90 * DAY}
    assert find_horizon(make_view(), CUT) is describe_expire(make_view()) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"format": 1, "column": "at"}'),
        '{"format": 2, "column": "at", "after_seconds": 5}',
        '{"format": 1, "column": 7, "after_seconds": 5}',
        *(
            f'{{"format": 1, "column": "at", "after_seconds": {seconds}}}'
            for seconds in ("0", "-5", "5.5", "true", '"5"', "99999999999999")
        ),
    ],
)
def test_a_text_that_is_not_understood_hides_nothing_and_is_refused(text: str) -> None:
    with pytest.raises(Unsupported, match="MW-P15"):
        find_horizon(view(text=text), CUT)
    assert describe_expire(view(text=text)) == {"unreadable": text}


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (view("int64"), "MW-P16"),
        (view("timestamp[us, tz=Europe/Berlin]"), "MW-P16"),
        (view("timestamp[ns, tz=+02:00]"), "MW-P16"),
        (view(text=make_expire("gone", 5).as_text()), "MW-P16"),
        (replace(view(), policy_text="{}"), "MW-P17"),
    ],
)
def test_a_table_that_it_does_not_fit_is_refused(found: TableView, code: str) -> None:
    with pytest.raises(Refused, match=code):
        find_horizon(found, CUT)


@pytest.mark.parametrize("seconds", [0, 0.5, 1.5, -1, 101 * 366 * DAY, float("inf")])
def test_an_age_is_whole_seconds(seconds: float) -> None:
    with pytest.raises(Usage):
        make_expire("at", seconds)
