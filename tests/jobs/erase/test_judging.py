"""What is left of erased rows is judged from what was seen; and keys are found in texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from memwal.format import layout
from memwal.jobs.erase.keys import Keys
from memwal.jobs.erase.plan import (
    Finding,
    Judge,
    ObjectKind,
    SearchResult,
    Sighting,
    State,
    begin_sighting,
    describe_stuck,
    find_spent,
    find_until,
)
from memwal.jobs.garbage.plan import Permission
from memwal.model import Erasure, ErasureMark, ShardId, ShardView, StoredFile
from memwal.text import iso_time
from tests.support.views import make_manifest

SHARD = ShardId("11111111-1111-4111-8111-111111111111")
DAY = 86_400 * 10**9
LOOK = SearchResult(
    version=9,
    sightings=(),
    versions={5: DAY, 6: 2 * DAY, 8: 3 * DAY, 9: 4 * DAY},
    index_names={"new": "notes", "old": "vectors"},
)
WEEK = Permission(deletes=True, retention_seconds=7 * 86_400.0, grace_seconds=3600.0, wal=True)
DONE = Erasure(
    erasure_id="01234567",
    keys=1,
    began_at="2026-11-25T00:00:00+00:00",
    holder="ann@host",
    version_before=5,
    marks={SHARD: ErasureMark(position=7, generation=3)},
    clean_version=8,
)


def seen(kind: ObjectKind, rows: int | None, made: int = 0, **more: Any) -> Sighting:
    file = StoredFile(path="p", size_bytes=1, modified_at_nanos=made)
    return Sighting(file=file, kind=kind, rows=rows, how="looked", **more)


def judged(sighting: Sighting, erasure: Erasure = DONE) -> Finding:
    (found,) = judge([sighting], erasure)
    return found


def judge(
    sightings: Sequence[Sighting], erasure: Erasure = DONE, now: int = 8 * DAY, kept: str = ""
) -> list[Finding]:
    return Judge(
        look=replace(LOOK, sightings=tuple(sightings)),
        erasure=erasure,
        permission=WEEK,
        kept={"p": kept} if kept else {},
        now_nanos=now,
    ).list_findings()


def at(nanos: int) -> str | None:
    return iso_time(nanos)


CASES = {
    "nothing in it": (seen(ObjectKind.DATA, 0, newest=9), State.ABSENT),
    "a file that can't be read": (seen(ObjectKind.DATA, None, newest=9), State.UNKNOWN),
    "a file of an older version": (seen(ObjectKind.DATA, 2, newest=6), State.HELD),
    "a file of no version": (seen(ObjectKind.DATA, 2), State.HELD),
    "a file of the clean version": (seen(ObjectKind.DATA, 2, newest=8, oldest=8), State.AGAIN),
    "a file of a later version": (seen(ObjectKind.DATA, 2, newest=9, oldest=9), State.AGAIN),
    "a file of before that the latest hides": (
        seen(ObjectKind.DATA, 2, newest=9, oldest=6),
        State.HELD,
    ),
    "an index of an older version": (seen(ObjectKind.INDEX, None, newest=6), State.HELD),
    "an index of no version": (seen(ObjectKind.INDEX, None), State.HELD),
    "an index that was built anew": (seen(ObjectKind.INDEX, None, newest=8), State.ABSENT),
    "a generation": (seen(ObjectKind.GENERATION, 1, shard_id=SHARD, number=3), State.HELD),
    "a later generation": (seen(ObjectKind.GENERATION, 1, shard_id=SHARD, number=4), State.AGAIN),
    "a WAL entry": (seen(ObjectKind.WAL_ENTRY, 1, shard_id=SHARD, number=7), State.HELD),
    "a later WAL entry": (seen(ObjectKind.WAL_ENTRY, 1, shard_id=SHARD, number=8), State.AGAIN),
    "a new shard's entry": (
        seen(ObjectKind.WAL_ENTRY, 1, shard_id=ShardId("x"), number=1),
        State.AGAIN,
    ),
    "a text": (seen(ObjectKind.VERSION, 1, newest=6), State.HELD),
    "a text of later": (seen(ObjectKind.VERSION, 1, newest=9), State.HELD),
    "a branch": (seen(ObjectKind.BRANCH, None), State.OUTSIDE),
    "a file that nobody knows": (seen(ObjectKind.OTHER, None), State.UNKNOWN),
}


@pytest.mark.parametrize("case", CASES)
def test_each_object_by_what_was_seen(case: str) -> None:
    sighting, state = CASES[case]
    found = judged(sighting)
    assert found.state is state, found
    assert found.why
    assert found.is_left is (state in (State.HELD, State.UNKNOWN))


@pytest.mark.parametrize("kind", [ObjectKind.DATA, ObjectKind.GENERATION, ObjectKind.WAL_ENTRY])
def test_nothing_counts_as_new_before_anything_was_done(kind: ObjectKind) -> None:
    begun = replace(DONE, marks={}, clean_version=None)
    found = judged(seen(kind, 1, newest=9, shard_id=SHARD, number=9), begun)
    assert found.state is State.HELD


def test_an_index_that_was_not_built_anew_holds_whatever_version_names_it() -> None:
    erasure = replace(DONE, not_rebuilt={"vectors": "too few"})
    found = judged(seen(ObjectKind.INDEX, None, newest=9, group="old"), erasure)
    assert (found.state, "too few" in found.why) == (State.HELD, True)


def test_until_when() -> None:
    assert judged(seen(ObjectKind.DATA, 1, newest=6)).until == at(9 * DAY)
    assert judged(seen(ObjectKind.DATA, 1, newest=6, pins=("tag 'x'",))).until is None
    assert judged(seen(ObjectKind.DATA, 1, 2 * DAY)).until == at(9 * DAY)
    staged = seen(ObjectKind.STAGED, None, 8 * DAY)
    assert (judged(staged).state, judged(staged).until) == (State.UNKNOWN, at(9 * DAY))
    assert judged(seen(ObjectKind.STAGED, None, 7 * DAY)).until is None
    data, generation = (
        judged(seen(ObjectKind.DATA, 1, newest=6)),
        judged(seen(ObjectKind.GENERATION, 1, shard_id=SHARD, number=1)),
    )
    assert find_until([data, generation]) == at(10 * DAY + 3600 * 10**9)
    unknown = judged(seen(ObjectKind.OTHER, None))
    assert find_until([data, unknown]) is None
    assert find_until([judged(seen(ObjectKind.DATA, 0))]) is None


@pytest.mark.parametrize(
    ("reason", "hours"),
    [
        ("leads the claim of epoch 2", None),
        ("its newest file is younger than the grace", 1),
        ("dropped; its folder is deleted once the grace is over", 1),
    ],
)
def test_no_moment_that_has_passed_is_named(reason: str, hours: int | None) -> None:
    """What else holds it, such as a cursor, has no end that is known."""
    now = 30 * DAY
    sightings = [
        seen(ObjectKind.GENERATION, 1, shard_id=SHARD, number=1),
        seen(ObjectKind.WAL_ENTRY, 1, shard_id=SHARD, number=1, generation=1),
        seen(ObjectKind.DATA, 1, newest=6),
    ]
    generation, entry, data = judge(sightings, now=now, kept=reason)
    until = None if hours is None else at(now + hours * 3600 * 10**9)
    assert (generation.until, entry.until, data.until) == (until, until, None)
    said = describe_stuck("t", [generation, entry, data])
    assert ("stays although it is older" in str(said), reason in str(said)) == (True, until is None)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("data/a.lance", ObjectKind.DATA),
        ("data/a/1.blob", ObjectKind.DATA),
        ("_versions/1.manifest", ObjectKind.VERSION),
        ("_versions/more/1.manifest", ObjectKind.OTHER),
        (layout.wal_entry_path(SHARD, 1), ObjectKind.WAL_ENTRY),
        (f"{layout.wal_entry_path(SHARD, 1)}.tmp.{'0' * 32}", ObjectKind.STAGED),
        (f"{layout.wal_entry_path(ShardId('s'), 1)}", ObjectKind.OTHER),
        (f"_mem_wal/{SHARD}/wal/1.arrow", ObjectKind.OTHER),
        (f"_mem_wal/{SHARD}/0a1b2c3d_gen_1/data/a.lance", ObjectKind.GENERATION),
        (f"_mem_wal/{SHARD}/0a1b2c3d_gen_007/data/a.lance", ObjectKind.OTHER),
        (f"_mem_wal/{SHARD}/notes/data/a.lance", ObjectKind.OTHER),
        (f"_mem_wal/{SHARD}/wal/notes.tmp.bak", ObjectKind.OTHER),
        (layout.shard_manifest_path(SHARD, 1), ObjectKind.SHARD_MANIFEST),
        (f"{layout.STAGING}/1-a", ObjectKind.STAGED),
        (f"{layout.ERASURES}/01234567/keys.arrow", ObjectKind.ERASED_KEYS),
        (f"{layout.ERASURES}/01234567/record.json", ObjectKind.ERASURE),
        (f"{layout.LEASE}/1.json", ObjectKind.RECORD),
        (layout.RESERVE, ObjectKind.RECORD),
        (f"{layout.MAINTENANCE}/torn/x", ObjectKind.MAINTENANCE),
        ("notes.bin", ObjectKind.OTHER),
    ],
)
def test_each_object_is_of_one_kind(path: str, kind: ObjectKind) -> None:
    assert begin_sighting(StoredFile(path=path, size_bytes=1, modified_at_nanos=1)).kind is kind


ENTRY = seen(
    ObjectKind.WAL_ENTRY, 1, shard_id=SHARD, number=5, generation=2, writer_epoch=1
)  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "others", "merged", "listed", "replay", "spent"),
    [
        (ENTRY, (), 2, (), 6, True),
        (replace(ENTRY, rows=0), (), 2, (), 6, False),
        (replace(ENTRY, number=8), (), 2, (), 9, False),  # written again
        (replace(ENTRY, number=7), (), 2, (), 6, False),  # not covered
        (replace(ENTRY, generation=None), (), 2, (), 6, False),
        (replace(ENTRY, shard_id=ShardId("x")), (), 2, (), 6, False),
        (ENTRY, (), 1, (), 6, False),
        (ENTRY, (), 2, (2,), 6, False),
        (ENTRY, (seen(ObjectKind.GENERATION, 0, shard_id=SHARD, number=2),), 2, (), 6, False),
        (ENTRY, (seen(ObjectKind.GENERATION, 0, shard_id=SHARD, number=3),), 2, (3,), 6, True),
    ],
)
def test_only_what_a_deleted_generation_covers_is_emptied(
    entry: Sighting,
    others: tuple[Sighting, ...],
    merged: int,
    listed: tuple[int, ...],
    replay: int,
    spent: bool,
) -> None:
    manifest = make_manifest(
        SHARD, listed, current_generation=4, replay_after_wal_entry_position=replay
    )
    shard = ShardView(manifest=manifest, merged_generation=merged)
    assert find_spent([entry, *others], [shard], DONE) == ([entry] if spent else [])


# ---- keys in texts


def test_a_number_in_a_text_counts_beside_its_column() -> None:
    keys = Keys(pa.table({"id": pa.array([42], pa.int64())}))
    texts = {"id IN (41, 42)": 1, "key {'id': 42} can't be": 1, "rows 42": 0, "id = 421": 0}
    for text, found in texts.items():
        assert bool(keys.count_in_texts(b"\x00\x01" + text.encode() + b"\x02")) == found, text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("name = 'O''Neil, Ann'", True),
        ("ann", False),
        ("a run xy", False),
        ("it's so that name = 'xy' can't be", True),
        ("'" * 100_000 + "name = 'xy'", True),
        ("-" * 100_000 + json.dumps({"name": 'a "b" c\\'}), True),
    ],
)
def test_a_text_in_a_text(text: str, found: bool) -> None:
    keys = Keys(pa.table({"name": ["O'Neil, Ann", "xy", 'a "b" c\\']}))
    assert bool(keys.count_in_texts(text.encode())) is found


@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_key_in_a_line_of_json(ascii_only: bool) -> None:
    name = 'Zoë "Q" O\'Neil\n'
    keys = Keys(pa.table({"id": pa.array([42], pa.int64()), "name": [name]}))
    row = {"id": 42, "name": name}
    for line, found in ((row, 1), ({"row": row, "error": "no"}, 1), ({**row, "id": 41}, 0)):
        text = json.dumps({"n": 1}) + "\n" + json.dumps(line, ensure_ascii=ascii_only) + "\n"
        assert keys.count_in_documents(text.encode()) == found


@pytest.mark.parametrize(
    ("value", "text", "found"),
    [
        ("ann-1", '{\n "id":\n "ann-1"\n}\n', 1),
        ("Zoë-1", '[\n {"id": "Zo\\u00eb-1"},\n {"id": "x"}\n]', 1),
        ("ann-1", '{"id": "bob-1"}\n{"id": "ann', None),
        ("Zoë-1", '{"id": "Zo\\u00', None),
        ("ann-1", '{"id": "ann-1"}\n{"id": "bo', 1),
        ("ann-1", '{"id": "bob-1"}\n\n', 0),
        (b"\x00\xff\x01", '{"id": "0x00ff01"}', 1),
        (b"\x00\xff\x01", '{"id": "AP8B"}', 1),
        (5, '{"id": 5.0}', 1),
        (5, '{"filter": "id = 05 or id = 1e9"}', 1),
        (5, '{"id": 5.5}', 0),
        (5, '{"id": 5e99999}', 0),
    ],
)
def test_values_that_are_written_otherwise(value: object, text: str, found: int | None) -> None:
    keys = Keys(pa.table({"id": [value]}))
    assert keys.count_in_documents(text.encode()) == found
