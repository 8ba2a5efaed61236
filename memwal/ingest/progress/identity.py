"""Which files were ingested already, by their addresses and content, not by times alone.

A file with another address is another file. A file of the same size is taken for the same, without
reading it, when its etag is the same, or its time where an etag is not known. Otherwise its bytes
are read, and their digest is compared with the recorded one. A Lance table is ingested once: of one
that has changed since, nothing tells which of its rows are new.

Digests of rows depend on their values alone, not on files, buffers or Arrow chunks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from memwal.errors import Missing, Refused
from memwal.ingest.sources.files import SourceFiles
from memwal.store.records.ingests import PlanRecord, SourceFile
from memwal.threads import side_by_side

_DIGEST_BYTES = 12
_DIGESTS: int = 256**_DIGEST_BYTES
_VECTORS = (pa.float32(), pa.float64(), pa.int8(), pa.uint8())
Bytes = Any

_READERS_MAX = 8


def digest_each(rows: pa.Table) -> int:
    """A digest that does not depend on the rows' order: digests of two tables can be added up.

    NULLs are left out, so that the digest stays the same when the table gets new columns.
    """
    digests = [hashlib.blake2b(digest_size=_DIGEST_BYTES) for _ in range(len(rows))]
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        for digest, value in zip(digests, _list_values_of(column), strict=True):
            if value is not None:
                digest.update(f"{name} {len(value)};".encode())
                digest.update(value)
    return sum_digests(int.from_bytes(digest.digest()) for digest in digests)


def sum_digests(digests: Iterable[int]) -> int:
    """The digest of all rows, from the digests of parts of them (`digest_each`)."""
    return sum(digests) % _DIGESTS


def _list_values_of(column: pa.ChunkedArray) -> Iterator[Bytes | None]:
    """Each row's value as bytes, whose encoding depends on the type alone."""
    for chunk in column.chunks:
        array = chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk
        kind, first, size = array.type, array.offset, 1
        is_vector = pa.types.is_fixed_size_list(kind) and kind.value_type in _VECTORS
        valid = array.is_valid().to_pylist()
        if is_vector:  # avoids Python objects, which are slow
            kind, size, array = kind.value_type, kind.list_size, array.values
            array = array.fill_null(0) if array.null_count else array
            first = first * size + array.offset
        if is_vector or (_has_width(kind) and kind.bit_width >= 8):
            width, buffer = kind.bit_width // 8, array.buffers()[1]
            data = memoryview(buffer or b"")[first * width :]
            values: Iterator[Bytes] = (
                data[n * width * size :][: width * size] for n in range(len(chunk))
            )
        else:
            values = (repr(value).encode() for value in array.to_pylist())
        yield from (value if there else None for value, there in zip(values, valid, strict=True))


def _has_width(kind: pa.DataType) -> bool:
    tests = (pa.types.is_primitive, pa.types.is_decimal, pa.types.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def select_new(
    files: SourceFiles, found: Sequence[SourceFile], plan: PlanRecord | None, *, again: bool
) -> tuple[list[SourceFile], list[SourceFile]]:
    """The files to ingest, and those that finished rounds have ingested.

    The first are the files that are new or changed, or all of them with `again`. Raises Refused
    when that can't be told, or when a Lance source was changed.
    """
    known = {} if plan is None else {f.uri: f for f in (*plan.before, *plan.sources)}
    new: list[SourceFile] = []
    for file in found:
        before = known.get(file.uri)
        if before is None or again:
            new.append(file)
        elif file.format == "lance":
            _check_as_ingested(files, before, file)
        elif is_same(files, before, file):
            # Recorded with its new time, so that it need not be read again.
            seen = {"stamp": file.stamp, "etag": file.etag}
            known[file.uri] = before.model_copy(update=seen)
        else:
            new.append(file)
    return new, list(known.values())


def add_digests(
    files: SourceFiles, new: Sequence[SourceFile], on_read: Callable[[int], None]
) -> list[SourceFile]:
    """The files with digests of their content; `on_read` gets the number of bytes of each read."""
    return side_by_side(lambda file: add_digest(files, file, on_read), new, _READERS_MAX)


def add_digest(
    files: SourceFiles, file: SourceFile, on_read: Callable[[int], None] = lambda size_bytes: None
) -> SourceFile:
    """The file with a digest of its content, which is read unless it has one already."""
    if file.digest is not None:
        return file
    if file.format == "lance":
        return file.model_copy(update={"digest": files.digest_table(file)})
    return file.model_copy(update={"digest": files.read_digest(file, on_read)})


def is_same(files: SourceFiles, before: SourceFile, now: SourceFile) -> bool:
    """Whether a file's content is unchanged."""
    if before.size_bytes != now.size_bytes:
        return False
    if before.etag and now.etag and before.etag == now.etag:
        return True
    if before.stamp == now.stamp and (not before.etag or not now.etag):
        return True
    return files.read_digest(now) == before.digest


def check_unchanged(
    files: SourceFiles, planned: Sequence[SourceFile], found: Sequence[SourceFile]
) -> None:
    """Raise Refused when a file of an unfinished round is gone or has changed."""
    there = {file.uri: file for file in found}
    for file in planned:
        now = there.get(file.uri)
        if now is None:
            changed = "is gone"
        elif file.format == "lance":
            changed = _find_change(files, file)
        else:
            changed = "" if is_same(files, file, now) else "has changed"
        if changed:
            raise Refused(
                "MW-I07",
                f"{file.uri} {changed} since its ingest began, which is not finished: what of it "
                "is written can't be told. Bring it back as it was; or --again gives that up and "
                "ingests its files from their beginning, rows that are written once more",
            )


def _find_change(files: SourceFiles, planned: SourceFile) -> str:
    """How the table version that is being ingested has changed; empty if it has not."""
    try:
        now = files.digest_table(planned)
    except Missing:
        return f"has no {planned.stamp} any more"
    return "" if planned.digest == now else "was written anew"


def _check_as_ingested(files: SourceFiles, before: SourceFile, now: SourceFile) -> None:
    """Raise Refused when rows of an ingested table were added or changed since."""
    if files.digest_table(now) != before.digest:
        raise Refused(
            "MW-I09",
            f"{now.uri}: has changed since it was ingested at {before.stamp}. --again reads all of "
            "it; what was deleted there stays here",
        )
