"""Which files were ingested already: told by their addresses and their content, not by times alone.

Under another address a file is another one. A file of the same size, time and etag is taken for the
same without reading it, and so is one with the same etag. Otherwise its bytes are read, and their
digest is compared with the recorded one. A Lance table goes on behind the fragments that it had.
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
    """What no finished round ingested as it is now (all of it `again`); and what those ingested.

    Raises Refused where that can't be told, or a Lance source did not only grow.
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
            # With its new time, so that it need not be read again.
            seen = {"stamp": file.stamp, "etag": file.etag}
            known[file.uri] = before.model_copy(update=seen)
        else:
            new.append(file)
    return new, list(known.values())


def add_digests(
    files: SourceFiles, new: Sequence[SourceFile], on_read: Callable[[int], None]
) -> list[SourceFile]:
    """The files with what tells their content later: reads all of them, so many bytes at a time."""
    return side_by_side(lambda file: add_digest(files, file, on_read), new, _READERS_MAX)


def add_digest(
    files: SourceFiles, file: SourceFile, on_read: Callable[[int], None] = lambda size_bytes: None
) -> SourceFile:
    """One of them."""
    if file.digest is not None:
        return file
    if file.format is Format.LANCE:
        told = files.describe_fragments(file)
        return file.model_copy(update={"digest": told.digest, "last_fragment": told.last})
    return file.model_copy(update={"digest": files.read_digest(file, on_read)})


def read_digests_of(
    files: SourceFiles, found: Sequence[SourceFile], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Numbers of files -> the files with their digests, as their records have them."""
    for place in (n for batch in batches for n in batch.column("id").to_pylist()):
        file = add_digest(files, found[place]).model_dump_json()
        yield pa.record_batch({"place": [place], "file": [file]})


def is_same(files: SourceFiles, before: SourceFile, now: SourceFile) -> bool:
    """Whether a file has the content that it had. Raises Refused where that can't be told."""
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
    """Whether it has the same size and time."""
    return (before.size_bytes, before.stamp) == (now.size_bytes, now.stamp)


def _find_change(files: SourceFiles, planned: SourceFile) -> str:
    """How the version of a table that is being ingested has changed; empty if it has not."""
    try:
        now = files.describe_fragments(planned)
    except Missing:
        return f"has no {planned.stamp} any more"
    return "" if planned.digest in (None, now.digest) else "was written anew"


def _find_appended(files: SourceFiles, before: SourceFile, now: SourceFile) -> SourceFile | None:
    """What was appended to a table; None when nothing was. Raises Refused when it has changed."""
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
