"""Which files were ingested already, by their addresses and content, not by times alone.

A file with another address is another file. A file of the same size is taken for the same, without
reading it, when its etag is the same, or its time where an etag is not known. Otherwise its bytes
are read, and their digest is compared with the recorded one. Of a Lance table, the fragments that
were appended since are ingested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from memwal.errors import Missing, Refused
from memwal.ingest.sources.files import SourceFiles
from memwal.store.records.ingests import Format, PlanRecord, SourceFile
from memwal.threads import side_by_side

_READERS_MAX = 8


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
    """Whether a file's content is unchanged. Raises Refused when that can't be told."""
    if before.size_bytes != now.size_bytes:
        return False
    if before.etag and now.etag and before.etag == now.etag:
        return True
    if before.stamp == now.stamp and (not before.etag or not now.etag):
        return True
    if before.digest is None:
        raise Refused(
            "MW-I04",
            f"{now.uri} has another time than when an earlier memwal ingested it, which kept no "
            f"digest: whether its content is the same can't be told. {_advise(before)} if it has "
            "changed, ingest it by itself under another --id, or all sources with --again",
        )
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
        elif file.digest is None:
            changed = "" if is_untouched(file, now) else "has changed"
        else:
            changed = "" if is_same(files, file, now) else "has changed"
        if changed:
            raise Refused(
                "MW-I07",
                f"{file.uri} {changed} since its ingest began, which is not finished: what of it "
                "is written can't be told. --resume-corrected goes on if that part is the same; or "
                "bring it back as it was, or ingest under another --id",
            )


def is_untouched(before: SourceFile, now: SourceFile) -> bool:
    """Whether the file has the same size and time."""
    return (before.size_bytes, before.stamp) == (now.size_bytes, now.stamp)


def _find_change(files: SourceFiles, planned: SourceFile) -> str:
    """How the table version that is being ingested has changed; empty if it has not."""
    try:
        now = files.describe_fragments(planned)
    except Missing:
        return f"has no {planned.stamp} any more"
    return "" if planned.digest in (None, now.digest) else "was written anew"


def _find_appended(files: SourceFiles, before: SourceFile, now: SourceFile) -> SourceFile | None:
    """The source of rows appended to a table since; None without any.

    Raises Refused when rows that were ingested have changed.
    """
    if before.digest is None or before.last_fragment is None:
        if before.stamp == now.stamp:
            return None
        try:
            told = files.describe_fragments(before)
        except Missing:
            raise Refused(
                "MW-I08",
                f"{now.uri}: {before.stamp}, which was ingested, is not there any more: what was "
                "appended since can't be told. --again reads all of it",
            ) from None
        before = before.model_copy(update={"digest": told.digest, "last_fragment": told.last})
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


def _advise(before: SourceFile) -> str:
    if "://" in before.uri:
        return "Leave it out of the sources if it is;"
    seconds, nanos = divmod(int(before.stamp), 10**9)
    return f"If it is, give it back its time (touch -d @{seconds}.{nanos:09});"
