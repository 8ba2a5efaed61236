"""Which files were ingested already, by their addresses and content, not by times alone.

A file with another address is another file. A file of the same size is taken for the same, without
reading it, when its etag is the same, or its time where an etag is not known. Otherwise its bytes
are read, and their digest is compared with the recorded one. Of a Lance table, the fragments that
were appended since are ingested.

An unfinished ingest goes on with corrected sources if the rows that are already written are
unchanged. Digests of rows depend on their values alone, not on files, buffers or Arrow chunks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import Missing, Refused, Usage
from memwal.ingest.sources.files import SourceFiles
from memwal.ingest.sources.splits import Split, make_splits
from memwal.ingest.values.shape import Shape
from memwal.ingest.values.writable_rows import Sieve, Sifted
from memwal.store.records.ingests import (
    WHOLE,
    Format,
    PlanRecord,
    ProgressRecord,
    ReadRecord,
    Round,
    SourceFile,
)
from memwal.threads import side_by_side

_DIGEST_BYTES = 12
_DIGESTS: int = 256**_DIGEST_BYTES
_VECTORS = (pa.float32(), pa.float64(), pa.int8(), pa.uint8())
Bytes = Any

_READERS_MAX = 8
_NAMED_MAX = 3


def digest_rows(before: str, rows: pa.Table, *more: pa.Array | None) -> str:
    """The digest `before` extended by these rows; `more` are further columns of them."""
    digest = hashlib.blake2b(before.encode(), digest_size=_DIGEST_BYTES)
    for column in (*rows.columns, *more):
        for part in _list_bytes(column):
            digest.update(part)
    return digest.hexdigest()


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


def _list_bytes(column: pa.ChunkedArray | pa.Array | None) -> Iterator[Bytes]:
    """The places of NULLs, and then the other values: what is stored under a NULL is arbitrary."""
    if column is None:
        yield b"-"
        return
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # no chunks, or too large for one
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    yield f"{array.type} {len(array)} {array.null_count};".encode()
    if array.null_count:
        yield pc.cast(array.is_valid(), pa.uint8()).to_numpy()
        array = array.drop_null()
    yield from _list_values(array)


def _list_values(array: pa.Array) -> Iterator[Bytes]:
    """The bytes of an array without NULLs."""
    kind = array.type
    if not len(array) or pa.types.is_null(kind):
        return
    if pa.types.is_dictionary(kind):
        yield from _list_bytes(array.dictionary_decode())
    elif pa.types.is_struct(kind):
        for member in array.flatten():
            yield from _list_bytes(member)
    elif pa.types.is_map(kind):
        ends = array.offsets.to_numpy()
        yield np.diff(ends)
        for members in (array.keys, array.items):
            yield from _list_bytes(members.slice(ends[0], ends[-1] - ends[0]))
    elif pa.types.is_nested(kind):
        if not pa.types.is_fixed_size_list(kind):
            yield pc.list_value_length(array).to_numpy()
        yield from _list_bytes(array.flatten())
    elif pa.types.is_boolean(kind):
        yield pc.cast(array, pa.uint8()).to_numpy()
    elif _has_width(kind):
        width = kind.bit_width // 8
        yield memoryview(array.buffers()[1])[array.offset * width :][: len(array) * width]
    else:
        large = array.cast(pa.large_binary())
        _, offsets, data = large.buffers()
        ends = np.frombuffer(offsets, np.int64)[large.offset : large.offset + len(large) + 1]
        yield np.diff(ends)
        yield memoryview(data or b"")[ends[0] : ends[-1]]


def _has_width(kind: pa.DataType) -> bool:
    tests = (pa.types.is_primitive, pa.types.is_decimal, pa.types.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def select_new(
    files: SourceFiles, found: Sequence[SourceFile], plan: PlanRecord | None, *, again: bool
) -> tuple[list[SourceFile], list[SourceFile]]:
    """The files to ingest, and those that finished rounds have ingested.

    The first are the files that are new or changed, or all of them with `again`. Raises Refused
    when that can't be told, or when a Lance source was changed other than by appending.
    """
    known = {} if plan is None else {f.uri: f for f in (*plan.before, *plan.sources)}
    new: list[SourceFile] = []
    for file in found:
        before = known.get(file.uri)
        if before is None or again:
            new.append(file)
        elif file.format is Format.LANCE:
            more = _find_appended(files, before, file)
            new += [] if more is None else [more]
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
    if file.format is Format.LANCE:
        told = files.describe_fragments(file)
        return file.model_copy(update={"digest": told.digest, "last_fragment": told.last})
    return file.model_copy(update={"digest": files.read_digest(file, on_read)})


def read_digests_of(
    files: SourceFiles, found: Sequence[SourceFile], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Numbers of files -> the files with their digests, as JSON records."""
    for place in (n for batch in batches for n in batch.column("id").to_pylist()):
        file = add_digest(files, found[place]).model_dump_json()
        yield pa.record_batch({"place": [place], "file": [file]})


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
        elif file.format is Format.LANCE:
            changed = _find_change(files, file)
        else:
            changed = "" if is_same(files, file, now) else "has changed"
        if changed:
            raise Refused(
                "MW-I07",
                f"{file.uri} {changed} since its ingest began, which is not finished: what of it "
                "is written can't be told. --resume-corrected goes on if that part is the same; or "
                "bring it back as it was, or ingest under another --id",
            )


def _find_change(files: SourceFiles, planned: SourceFile) -> str:
    """How the table version that is being ingested has changed; empty if it has not."""
    try:
        now = files.describe_fragments(planned)
    except Missing:
        return f"has no {planned.stamp} any more"
    return "" if planned.digest == now.digest else "was written anew"


def _find_appended(files: SourceFiles, before: SourceFile, now: SourceFile) -> SourceFile | None:
    """The source of rows appended to a table since; None without any.

    Raises Refused when rows that were ingested have changed.
    """
    if files.describe_fragments(now, before.last_fragment).digest != before.digest:
        raise Refused(
            "MW-I09",
            f"{now.uri}: rows that were ingested at {before.stamp} were updated, deleted or "
            "rewritten (by compaction, too) since. --again reads all of it; what was deleted there "
            "stays here",
        )
    told = files.describe_fragments(now)
    if told.last == before.last_fragment:
        return None
    found = {
        "digest": told.digest,
        "last_fragment": told.last,
        "fragments_after": before.last_fragment,
    }
    return now.model_copy(update=found)


def add_to_read(read: ReadRecord, rows: int, sifted: Sifted) -> ReadRecord:
    """The record of what was read of a split, extended by a chunk of `rows` rows."""
    rejected = [reject.row for reject in sifted.rejects]
    digest = digest_rows(f"{read.digest} {rows} {rejected}", sifted.rows, sifted.deleted)
    return ReadRecord(rows=read.rows + rows, digest=digest)


def _take_mended(
    files: SourceFiles, plan: PlanRecord, there: Sequence[SourceFile], *, allowed: bool
) -> PlanRecord:
    """The plan, with its files as they are now if they changed; raises Refused unless `allowed`."""
    try:
        check_unchanged(files, plan.sources, there)
    except Refused:
        now = {file.uri: file for file in there}
        if not allowed or any(file.uri not in now for file in plan.sources):
            raise
        mended = [now[file.uri] for file in plan.sources]
        sources = tuple(add_digests(files, mended, lambda size_bytes: None))
        return plan.model_copy(update={"sources": sources, "corrected": True})
    return plan


def settle_sources(
    files: SourceFiles,
    shape: Shape,
    found: Round,
    plan: PlanRecord,
    there: Sequence[SourceFile],
    *,
    allowed: bool,
) -> PlanRecord:
    """The plan with its files as they are now (`there`).

    Files may only differ in rows that are not written yet; that they were corrected is then stored.
    Raises Refused for files that changed when that is not `allowed`, or in written rows.
    """
    mended = _take_mended(files, plan, there, allowed=allowed)
    if mended is not plan:
        splits = make_splits(files, mended.sources, shape, plan.chunk_rows)
        check_read(splits, shape, found.read_progress(WHOLE))
        found.correct(mended.sources)
    return mended


def check_read(splits: Sequence[Split], shape: Shape, progress: ProgressRecord) -> None:
    """Read the written part of the sources again. Raises Refused if it has changed."""
    sieve = Sieve(shape=shape, rows_max=progress.rows_rejected)
    for place, wanted in enumerate(progress.read):
        split, found = splits[place], ReadRecord()
        try:
            for chunk in split.read(0):
                if place == progress.split and found.rows >= wanted.rows:
                    break
                sifted = sieve.sift(chunk, split.name, found.rows, split.find_place)
                found = add_to_read(found, len(chunk), sifted)
        except Usage as error:
            raise _refuse(splits, place, progress, f" ({error})") from None
        if found != wanted:
            raise _refuse(splits, place, progress)


def _refuse(
    splits: Sequence[Split], place: int, progress: ProgressRecord, why: str = ""
) -> Refused:
    there = [f"{read.rows:,} of {s.name}" for s, read in zip(splits, progress.read, strict=False)]
    named = ", ".join(there[:_NAMED_MAX]) + ", …" * (len(there) > _NAMED_MAX)
    aside = " (rows that were set aside, too)" if progress.rows_rejected else ""
    return Refused(
        "MW-I05",
        f"{splits[place].name}: its first {progress.read[place].rows:,} rows are written, and are "
        f"not what they were{why}. Bring them back as they were{aside}; under another --id, "
        f"{progress.rows:,} rows would be counted twice ({named})",
    )
