"""What of a trail is about an object, and what is wrong with a trail."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from memwal.format import layout
from memwal.jobs.audit.job import Chain, clean_path, is_about
from memwal.jobs.audit.report import Finding
from memwal.report import AuditItem

MISSING, CHANGED, DISOWNED = "MW-U01", "MW-U02", "MW-U03"

SHARD = "_mem_wal/ce5beb05-56de-41d9-b419-bbf41d04f9ab"
GONE = AuditItem(kind="x", action="delete", path=f"{SHARD}/0a332fa8_gen_2")
MERGED = AuditItem(kind="x", action="merge", path=SHARD, generations=(2, 4))
RESCUED = AuditItem(kind="x", action="rescue", path=SHARD, generations=(5, 5))
EXPIRED = AuditItem(
    kind="x", action="expire", path=f"_versions/{layout.table_manifest_names(7)[0]}", version=7
)
REWRITTEN = AuditItem(kind="x", action="rewrite", path="data", version=9)


ABOUT = {
    GONE: (
        [GONE.path, f"{GONE.path}/data/x.lance", SHARD, "_mem_wal"],
        [f"{GONE.path}5", f"{SHARD}/0a332fa8_gen_20", "_mem_wa", "data/x.lance"],
    ),
    MERGED: (
        [SHARD, f"{SHARD}/0a332fa8_gen_2", f"{SHARD}/0a332fa8_gen_4/data/x"],
        [f"{SHARD}/0a332fa8_gen_1", f"{SHARD}/0a332fa8_gen_5", f"{SHARD}/wal/1.arrow", "data"],
    ),
    RESCUED: (
        [SHARD, f"{SHARD}/0a332fa8_gen_5", f"{SHARD}/wal/1.arrow"],
        [f"{SHARD}/0a332fa8_gen_4", "data/x.lance"],
    ),
    EXPIRED: (
        [EXPIRED.path, "_versions/7.manifest", "data/x.lance", "_indices/u/i.idx", "_versions"],
        ["_versions/8.manifest", SHARD, "_maintenance/runs/x.json"],
    ),
    REWRITTEN: (["data", "data/x.lance", "_deletions/1.arrow"], ["_indices/u", SHARD]),
}


@pytest.mark.parametrize("line", ABOUT, ids=lambda line: line.action)
def test_what_is_about_a_path(line: AuditItem) -> None:
    about, not_about = ABOUT[line]
    assert [path for path in about if not is_about(line, path)] == []
    assert [path for path in not_about if is_about(line, path)] == []


def test_a_path_may_come_with_the_address() -> None:
    for path in ("a/b", "/a/b/", "s3://b/t/a/b", "s3://b/t//a/b"):
        assert clean_path(path, "s3://b/t") == "a/b"


# ---- the chain


def follow(
    documents: Sequence[tuple[int, str | None, str | None]], recorded: dict[int, str] | None = None
) -> list[Finding]:
    """What is wrong with documents of these numbers, digests and digests before."""
    chain = Chain(recorded=recorded or {})
    found: list[Finding] = []
    for number, digest, previous in documents:
        problem = None if digest is not None else "unreadable"
        found += chain.follow(number, digest=digest, previous=previous, problem=problem)
    return [*found, *chain.end()]


WHOLE = [(1, "a", ""), (2, "b", "a"), (3, "c", "b"), (4, "d", "c")]


def test_a_whole_chain() -> None:
    assert follow(WHOLE) == follow([]) == follow(WHOLE, {1: "a", 4: "d"}) == []


def test_missing_documents() -> None:
    for left_out, text in (
        ({1}, "document 1 is missing"),
        ({2, 3}, "documents 2 to 3 are missing"),
    ):
        (found,) = follow([one for one in WHOLE if one[0] not in left_out])
        assert (found.code, found.number) == (MISSING, min(left_out))
        assert found.detail == text


def test_the_end_is_missed_by_what_the_table_recorded() -> None:
    assert follow(WHOLE[:3]) == [], "a chain alone does not tell"
    (found,) = follow(WHOLE[:3], {2: "b", 4: "d"})
    assert (found.code, found.number) == (DISOWNED, 4)
    (found,) = follow([], {2: "b"})
    assert (found.code, found.number) == (DISOWNED, 2)


def test_a_document_that_was_written_anew() -> None:
    (found,) = follow([(1, "a", ""), (2, "x", "a"), (3, "c", "b")])
    assert (found.code, found.number) == (CHANGED, 3)
    assert "does not carry the digest of 2" in found.detail
    anew = [(1, "a", ""), (2, "x", "a"), (3, "y", "x")]
    assert follow(anew) == [], "all of it from there on: a chain alone does not tell"
    assert [(f.code, f.number) for f in follow(anew, {1: "a", 3: "c"})] == [(DISOWNED, 3)]


def test_a_first_document_that_claims_one_before() -> None:
    (found,) = follow([(1, "a", "z")])
    assert (found.code, found.number) == (CHANGED, 1)


def test_an_unreadable_document_is_one_finding() -> None:
    (found,) = follow([(1, "a", ""), (2, None, None), (3, "c", "b")])
    assert (found.code, found.number, found.detail) == (
        CHANGED,
        2,
        "document 2: unreadable",
    )


# ---- who writes into a trail

JOBS = Path(__file__).parents[3] / "memwal" / "jobs"


DELETES = re.compile(r"objects\.delete\(|checkpoints\.remove\(|tags\.delete\(|expire_versions\(")
# What these delete is their own, and of no table: files to try a store with, copies in a place.
OF_NO_TABLE = {"doctor", "backup"}


def test_every_job_that_deletes_says_so_in_the_trail() -> None:
    rooms: dict[str, str] = {}
    for file in JOBS.rglob("*.py"):
        room = file.relative_to(JOBS).parts[0].removesuffix(".py")
        rooms[room] = rooms.get(room, "") + file.read_text()
    deleting = {room for room, text in rooms.items() if DELETES.search(text)}
    assert deleting >= {"garbage", "checkpoint", "erase", *OF_NO_TABLE}
    assert [r for r in sorted(deleting - OF_NO_TABLE) if "def audited(" not in rooms[r]] == []
