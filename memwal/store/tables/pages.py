"""Reads parts of a table for their own sake: fragments, and the files of indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from memwal.errors import Corruption, Missing, StoreUnavailable
from memwal.ports import Objects
from memwal.store.tables.datasets import LanceTables
from memwal.store.tables.generations import is_reading_fault
from memwal.store.tables.indexes import list_index_folders
from memwal.store.tables.lance_calls import Says, is_panic, says, tidy_text

_BATCH_ROWS_MAX = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A fragment's files, or one file of an index. `find_fault` reads all of it."""

    path: str
    size_bytes: int
    find_fault: Callable[[], str | None]


def list_fragments(dataset: Any, folder: str = "") -> Iterator[Part]:
    """The fragments of a dataset, which lies in that folder below the table."""
    for fragment in dataset.get_fragments():
        files = fragment.metadata.files
        yield Part(
            path=" + ".join(f"{folder}data/{file.path}" for file in files),
            size_bytes=sum(file.file_size_bytes or 0 for file in files),
            find_fault=partial(_find_in, fragment, partial(_scan, dataset, fragment)),
        )


def list_index_files(objects: Objects, tables: LanceTables, dataset: Any) -> Iterator[Part]:
    """The files of a version's indexes."""
    for folder in list_index_folders(dataset):
        for file in objects.list(folder):
            yield Part(
                path=file.path,
                size_bytes=file.size_bytes,
                find_fault=partial(_find_in_file, tables, file.path),
            )


def find_fault(fragment: Any) -> str | None:
    """What is wrong with a fragment: Lance looks at its files' lengths, rows and deletions."""
    return _find_in(fragment, fragment.validate)


def _scan(dataset: Any, fragment: Any) -> None:
    # Little is held at once: a row may be large.
    scanner = dataset.scanner(
        fragments=[fragment],
        batch_size=_BATCH_ROWS_MAX,
        batch_readahead=1,
        with_row_id=True,
        include_deleted_rows=True,
    )
    _drain(scanner.to_batches())


def _find_in(fragment: Any, look: Callable[[], object]) -> str | None:
    try:
        look()
    except BaseException as error:  # a panic in Lance's Rust code is no Exception
        if not isinstance(error, RuntimeError) and not is_reading_fault(error):
            raise
        text = tidy_text(error)
        if not (is_panic(error) or says(error, Says.DAMAGED, Says.GONE)):
            raise StoreUnavailable(f"fragment {fragment.fragment_id}: {text}") from None
        return text
    return None


def _find_in_file(tables: LanceTables, path: str) -> str | None:
    try:
        _drain(tables.file_batches(path, None))
    except (Missing, Corruption) as error:
        return str(error)
    return None


def _drain(batches: Iterable[object]) -> None:
    for _ in batches:
        pass
