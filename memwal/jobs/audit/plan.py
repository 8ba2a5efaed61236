"""Finds what a trail says of an object, and what is wrong with a trail. Pure.

A trail is whole if its numbers have no gap from 1 on, each document's bytes have the digest in its
last line, and each carries the digest of the one before. Its end could still be cut off, or all of
it be written anew from some document on: that shows where a run record in the table names a
document which the trail does not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from memwal.errors import Corruption
from memwal.format import layout

_BASE_FOLDERS = frozenset(("data", "_deletions", "_indices", "_transactions"))
_REWRITTEN = frozenset(("data", "_deletions"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """What decides of an item of a trail: see `memwal.report.AuditItem`."""

    action: str
    path: str
    generations: tuple[int, int] | None = None
    version: int | None = None


def clean_path(path: str, table: str) -> str:
    """A path below the table, whether it was given with the table's address or without."""
    return path.removeprefix(table.rstrip("/")).strip("/")


def is_about(line: Line, path: str) -> bool:
    """Whether the item is about that object or folder, or may be."""
    if line.path == path or line.path.startswith(f"{path}/"):
        return True
    folder, _, name = path.rpartition("/")
    if line.action == "expire":
        # Lance says which versions went, and not which files nothing needed any more.
        version = layout.parse_table_manifest_name(name) if folder == layout.VERSIONS else None
        return version == line.version or path.partition("/")[0] in _BASE_FOLDERS
    if line.action == "rewrite":
        return path.partition("/")[0] in _REWRITTEN
    if line.action in ("merge", "rescue"):
        rest = path.removeprefix(f"{line.path}/")
        if rest == path:
            return False
        generation = layout.parse_generation_folder(rest.partition("/")[0])
        if generation is None:
            return line.action == "rescue"
        first, last = line.generations or (0, 0)
        return first <= generation <= last
    return path.startswith(f"{line.path}/")


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Something that is wrong with a trail, at a document."""

    number: int
    error: Corruption


@dataclass(kw_only=True, slots=True)
class Chain:
    """Follows a trail from its first document on.

    `recorded` has the digests by number that run records in the table name. `digest` is that of the
    last document; None where it can't be read.
    """

    recorded: Mapping[int, str] = field(default_factory=dict)
    documents: int = 0
    last: int = 0
    digest: str | None = ""

    def follow(
        self, number: int, *, digest: str | None, previous: str | None, problem: str | None
    ) -> Iterator[Finding]:
        """What is wrong with the next document, whose number is higher than that of the last.

        `digest` and `previous` are None where they can't be read.
        """
        if number > self.last + 1:
            first, last = self.last + 1, number - 1
            gone = f"document {first} is" if first == last else f"documents {first} to {last} are"
            yield Finding(number=first, error=Corruption("MW-U01", f"{gone} missing"))
        elif previous is not None and self.digest is not None and previous != self.digest:
            text = f"document {number} does not carry the digest of {self.last}: one was changed"
            yield _find_changed(number, text)
        if problem is not None:
            yield _find_changed(number, f"document {number}: {problem}")
        known = self.recorded.get(number)
        if known is not None and digest is not None and known != digest:
            text = f"document {number} is not the one that a run record in the table names"
            yield _find_disowned(number, text)
        self.documents += 1
        self.last, self.digest = number, digest

    def end(self) -> Iterator[Finding]:
        """What the run records in the table name beyond the trail's end."""
        beyond = sorted(number for number in self.recorded if number > self.last)
        if beyond:
            text = f"the trail ends at {self.last}; run records in the table name {beyond[-1]}"
            yield _find_disowned(beyond[-1], text)


def _find_changed(number: int, text: str) -> Finding:
    return Finding(number=number, error=Corruption("MW-U02", text))


def _find_disowned(number: int, text: str) -> Finding:
    return Finding(number=number, error=Corruption("MW-U03", text))
