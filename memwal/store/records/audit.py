"""The audit trail: numbered documents of JSON lines, each with the digest of the one before it.

The first line of a document is its entry, the last one the digest of all lines above it, and each
line between is an item. A document is put if its number is free, and never changed: of two runs
that end at once, one gets the next number. Nothing here deletes any.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from pydantic import ValidationError

from memwal.errors import AlreadyExists, Corruption, LostRace, Missing
from memwal.format import layout
from memwal.ports import OBJECT_BYTES_MAX, Objects
from memwal.report import AuditEntry, AuditItem, AuditLink
from memwal.threads import side_by_side

ITEMS_PER_DOCUMENT_MAX = 50_000
LISTED_MAX = 1_000_000
_ATTEMPTS_MAX = 200
_READERS_MAX = 16
_READ_AT_ONCE = 256
# {"sha256": "…"} and its line feed.
_SEAL_BYTES = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundDocument:
    """A document as it was read; `problem` says what is wrong with it."""

    number: int
    link: AuditLink | None = None
    entry: AuditEntry | None = None
    items: Sequence[AuditItem] = ()
    problem: str | None = None


class StoredTrail:
    """The audit trail of one table, in `folder` of a place that may have those of many."""

    def __init__(self, objects: Objects, folder: str) -> None:
        self.objects = objects
        self.folder = folder
        self._newest: AuditLink | None = None

    @property
    def uri(self) -> str:
        """Where it is."""
        return f"{self.objects.uri}/{self.folder}"

    def append(self, entry: AuditEntry, items: Sequence[AuditItem]) -> AuditLink:
        """Store a document as the newest one; its `number` and `previous` are set here.

        Raises Corruption if the one before it can't be read, LostRace, StoreUnavailable.
        """
        newest = self._newest or self._find_newest()
        for _ in range(_ATTEMPTS_MAX):
            number = 1 if newest is None else newest.number + 1
            before = "" if newest is None else newest.sha256
            link, data = encode(
                entry.model_copy(update={"number": number, "previous": before}), items
            )
            try:
                self.objects.put_if_absent(layout.audit_path(self.folder, number), data)
            except AlreadyExists:
                newest = self._read_link(number)
                if newest != link:  # else it is this very document, whose reply was lost
                    continue
            self._newest = link
            return link
        raise LostRace(f"{self.uri}: others were faster {_ATTEMPTS_MAX} times; run again")

    def numbers(self) -> list[int]:
        """The numbers of all documents, ascending: a listing."""
        listed = islice(self.objects.list(self.folder), LISTED_MAX)
        found = (layout.parse_audit_name(file.path.rpartition("/")[2]) for file in listed)
        return sorted(number for number in found if number is not None)

    def read(self, numbers: Sequence[int]) -> Iterator[FoundDocument]:
        """Read these documents, in this order, a few hundred at a time."""
        for start in range(0, len(numbers), _READ_AT_ONCE):
            some = numbers[start : start + _READ_AT_ONCE]
            yield from side_by_side(self._read, some, _READERS_MAX)

    def _find_newest(self) -> AuditLink | None:
        """The newest document: names sort newest first, so a sorted listing's first page has it.

        Where that is out of date, the put of the next number finds it taken, and goes on from it.
        """
        page = self.objects.page_objects or LISTED_MAX
        listed = islice(self.objects.list(self.folder), page)
        found = (layout.parse_audit_name(file.path.rpartition("/")[2]) for file in listed)
        newest = max((number for number in found if number is not None), default=None)
        return None if newest is None else self._read_link(newest)

    def _read_link(self, number: int) -> AuditLink:
        path = layout.audit_path(self.folder, number)
        tail, _ = self.objects.get_tail(path, _SEAL_BYTES)
        sealed = _read_seal(tail.rpartition(b"\n{")[2])
        if sealed is None:
            raise Corruption(
                "MW-U02",
                f"{self.objects.uri}/{path}: the last line of this document of the audit trail is "
                "no digest, so none can follow it",
            )
        return AuditLink(number=number, sha256=sealed)

    def _read(self, number: int) -> FoundDocument:
        path = layout.audit_path(self.folder, number)
        try:
            return decode(number, self.objects.get(path, OBJECT_BYTES_MAX))
        except Missing:
            return FoundDocument(number=number, problem="it was deleted just now")
        except Corruption as error:
            return FoundDocument(number=number, problem=error.text)


def encode(entry: AuditEntry, items: Sequence[AuditItem]) -> tuple[AuditLink, bytes]:
    """A document's bytes, and the link to it."""
    lines = [entry.model_dump_json(exclude_defaults=False)]
    lines += [item.model_dump_json(exclude_defaults=True) for item in items]
    data = "".join(f"{line}\n" for line in lines).encode()
    digest = hashlib.sha256(data).hexdigest()
    seal = json.dumps({"sha256": digest}) + "\n"
    return AuditLink(number=entry.number, sha256=digest), data + seal.encode()


def decode(number: int, data: bytes) -> FoundDocument:
    """Read a document; what it can't be is its `problem`."""
    above, _, seal = data.removesuffix(b"\n").rpartition(b"\n")
    digest = hashlib.sha256(above + b"\n").hexdigest()
    if _read_seal(seal.removeprefix(b"{")) != digest:
        return FoundDocument(number=number, problem="its bytes are not those that were written")
    link = AuditLink(number=number, sha256=digest)
    head, *lines = above.split(b"\n")
    try:
        entry = AuditEntry.model_validate_json(head)
        items = [AuditItem.model_validate_json(line) for line in lines]
    except ValidationError as error:
        text = f"this memwal can't read it: {error.errors()[0]['msg']}"
        return FoundDocument(number=number, link=link, problem=text)
    if entry.number != number:
        return FoundDocument(number=number, problem=f"it is a copy of document {entry.number}")
    return FoundDocument(number=number, link=link, entry=entry, items=items)


def _read_seal(rest: bytes) -> str | None:
    """The digest in a document's last line, which comes without its opening brace."""
    try:
        found = json.loads(b"{" + rest)
        return AuditLink(number=1, sha256=found["sha256"]).sha256
    except (ValueError, KeyError, TypeError):
        return None
