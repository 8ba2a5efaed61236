"""Audit trails in every store: a chain without gaps, whoever else appends."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator

import pytest

from memwal.errors import AlreadyExists, Corruption, LostRace
from memwal.format import layout
from memwal.model import StoredFile
from memwal.ports import Objects
from memwal.report import AuditEntry, AuditItem, AuditLink
from memwal.store.records.audit import StoredTrail, decode, encode
from memwal.testing import Fault, FaultyObjects, MemoryObjects
from memwal.threads import side_by_side

FOLDER = "orders-0123456789abcdef"


def entry(run_id: str = "run", **facts: object) -> AuditEntry:
    known = {
        "number": 1,
        "previous": "",
        "table": "/t",
        "run_id": run_id,
        "job": "garbage",
        "phase": "outcome",
        "at": "2026-11-25T00:00:00+00:00",
        "holder": "ann@host:1",
        "memwal": "0.1.0",
    }
    return AuditEntry.model_validate({**known, **facts})


ITEM = AuditItem(action="delete", kind="generation", path="a/b", bytes=7, reason="merged\nhere")


def check_chain(trail: StoredTrail, documents: int) -> list[AuditLink]:
    """All are there, each with the digest of the one before; returns their links."""
    assert trail.numbers() == list(range(1, documents + 1))
    before, links = "", []
    for found in trail.read(trail.numbers()):
        assert found.problem is None
        assert found.entry is not None and found.link is not None
        assert found.entry.previous == before
        before = found.link.sha256
        links.append(found.link)
    return links


def test_documents_are_a_chain_in_every_store(open_store: Callable[[], Objects]) -> None:
    trail = StoredTrail(open_store(), FOLDER)
    made = [trail.append(entry("one"), [ITEM, ITEM]), trail.append(entry("two"), [])]
    made.append(StoredTrail(open_store(), FOLDER).append(entry("three"), [ITEM]))
    other = StoredTrail(open_store(), "other-0123456789abcdef")
    other.append(entry("other"), [])
    assert check_chain(trail, 3) == made
    first, second, third = trail.read([1, 2, 3])
    assert (first.items, second.items, third.items) == ([ITEM, ITEM], [], [ITEM])
    assert [f.entry.run_id for f in (first, second, third) if f.entry] == ["one", "two", "three"]
    check_chain(other, 1)


def test_appending_costs_a_listing_a_read_and_a_put() -> None:
    objects = MemoryObjects()
    for number in range(3):
        StoredTrail(objects, FOLDER).append(entry(f"before{number}"), [])
    trail, before = StoredTrail(objects, FOLDER), objects.counts.as_dict()
    trail.append(entry("intent"), [ITEM] * 1000)
    counts = objects.counts
    assert [getattr(counts, n) - before[n] for n in ("list", "get", "put")] == [1, 1, 1]
    assert counts.bytes_read - before["bytes_read"] < 200, "only the end of the one before is read"
    trail.append(entry("outcome"), [])
    assert [getattr(counts, n) - before[n] for n in ("list", "get", "put")] == [1, 1, 2]


class Paged(FaultyObjects):
    """Counts what is taken of its listings."""

    taken = 0

    def list(self, prefix: str) -> Iterator[StoredFile]:
        for file in super().list(prefix):
            self.taken += 1
            yield file


def test_a_long_trail_is_not_listed_as_a_whole() -> None:
    objects = Paged(MemoryObjects())
    newest = objects.page_objects + 5
    for number in range(1, newest):
        objects.put(layout.audit_path(FOLDER, number), b"old")
    _, data = encode(entry(number=newest), [])
    objects.put(layout.audit_path(FOLDER, newest), data)
    assert StoredTrail(objects, FOLDER).append(entry(), []).number == newest + 1
    assert objects.taken == objects.page_objects
    assert StoredTrail(objects, FOLDER).numbers() == list(range(1, newest + 2))


def test_runs_at_the_same_time_get_numbers_of_their_own(open_store: Callable[[], Objects]) -> None:
    def append(name: str) -> None:
        trail = StoredTrail(open_store(), FOLDER)
        for number in range(5):
            trail.append(entry(f"{name}{number}"), [ITEM])

    side_by_side(append, "abc", 3)
    trail = StoredTrail(open_store(), FOLDER)
    check_chain(trail, 15)
    names = [found.entry.run_id for found in trail.read(trail.numbers()) if found.entry]
    for name in "abc":
        own = [found for found in names if found.startswith(name)]
        assert own == [f"{name}{number}" for number in range(5)], "in the order they were written"


def test_a_put_whose_reply_was_lost_is_not_made_twice() -> None:
    objects = MemoryObjects()
    retried = Fault(operation="put_if_absent", when="after", error=AlreadyExists("by itself"))
    made = StoredTrail(FaultyObjects(objects, retried), FOLDER).append(entry(), [ITEM])
    assert check_chain(StoredTrail(objects, FOLDER), 1) == [made]


def test_a_listing_that_lags_leads_to_the_newest_all_the_same() -> None:
    objects = MemoryObjects()
    trail = StoredTrail(objects, FOLDER)
    for number in range(5):
        trail.append(entry(f"before{number}"), [])

    class Lagging(FaultyObjects):
        """Its listings lack the two newest."""

        def list(self, prefix: str) -> Iterator[StoredFile]:
            newest = {layout.audit_path(FOLDER, number) for number in (4, 5)}
            return (file for file in super().list(prefix) if file.path not in newest)

    assert StoredTrail(Lagging(objects), FOLDER).append(entry(), []).number == 6
    check_chain(trail, 6)


def test_races_without_end_are_given_up() -> None:
    objects = MemoryObjects()
    others = StoredTrail(objects, FOLDER)

    def overtake() -> None:
        others.append(entry("faster"), [])

    always = Fault(operation="put_if_absent", nth=None, hook=overtake)
    with pytest.raises(LostRace, match="others were faster"):
        StoredTrail(FaultyObjects(objects, always), FOLDER).append(entry(), [])


def test_what_was_damaged_lets_nothing_follow() -> None:
    objects = MemoryObjects()
    StoredTrail(objects, FOLDER).append(entry(), [ITEM])
    path = layout.audit_path(FOLDER, 1)
    objects.put(path, objects.get(path)[:-20])
    with pytest.raises(Corruption, match="MW-U02") as caught:
        StoredTrail(objects, FOLDER).append(entry(), [])
    assert path in str(caught.value)
    assert StoredTrail(objects, FOLDER).numbers() == [1]


_, WHOLE = encode(entry(), [ITEM])


def test_each_changed_byte_is_noticed() -> None:
    assert decode(1, WHOLE).problem is None
    for at in range(len(WHOLE) - 1):
        changed = WHOLE[:at] + bytes([WHOLE[at] ^ 1]) + WHOLE[at + 1 :]
        found = decode(1, changed)
        assert found.problem is not None, at
        assert found.entry is None


def test_a_document_under_another_number_is_noticed() -> None:
    assert decode(2, WHOLE).problem == "it is a copy of document 1"


@pytest.mark.parametrize("data", [b"", b"\n", b"{}", b'{"sha256": 5}\n', WHOLE[:100], WHOLE * 2])
def test_what_is_no_document_is_no_crash(data: bytes) -> None:
    assert decode(1, data).problem is not None


def test_what_a_newer_memwal_adds_is_passed_over() -> None:
    _, data = encode(entry().model_copy(), [])
    assert decode(1, data).entry == entry()
    head = {**entry().model_dump(mode="json"), "colour": "red"}
    item = {"action": "shred", "kind": "shadow", "path": "x", "depth": 3}
    above = "".join(json.dumps(line) + "\n" for line in (head, item)).encode()
    seal = json.dumps({"sha256": hashlib.sha256(above).hexdigest()}) + "\n"
    found = decode(1, above + seal.encode())
    assert found.problem is None
    assert [i.action for i in found.items] == ["shred"]


def test_names_sort_newest_first_and_are_read_back() -> None:
    paths = [layout.audit_path(FOLDER, number) for number in (1, 2, 10, 999, 10**12 - 1)]
    assert paths == sorted(paths, reverse=True)
    names = [path.rpartition("/")[2] for path in paths]
    assert [layout.parse_audit_name(name) for name in names] == [1, 2, 10, 999, 10**12 - 1]
    for name in ("000000000000.jsonl", "1.jsonl", "999999999999.json", "x999999999999.jsonl"):
        assert layout.parse_audit_name(name) is None
    with pytest.raises(ValueError, match="does not fit"):
        layout.audit_path(FOLDER, 0)


def test_folders_of_trails_are_plain_names() -> None:
    addresses = (
        "s3://b/lake/orders",
        "s3://b/other/orders",
        "/tmp/Ärger & Co",
        "s3://b/" + "x" * 300,
    )
    names = [layout.name_trail(address, address) for address in addresses]
    assert len(set(names)) == 4
    for name in names:
        assert len(name) < 80 and name.isascii() and "/" not in name and not name.startswith(".")
    assert names[0].startswith("orders-")
