"""A search for marked bytes in all files below a folder. It knows pylance and Arrow, and no memwal.

Each file is searched as it is stored, and then decoded as everything that it may be: a Lance file,
with all its columns, an Arrow stream or file, or Parquet. So neither packing nor compression hides
a mark. Of what is decoded, the buffers are searched, whatever their type.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from lance.file import LanceFileReader


def find_marks(folder: str, marks: Sequence[bytes]) -> dict[str, set[bytes]]:
    """The marks that are in each file; files without any are left out."""
    found: dict[str, set[bytes]] = {}
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file():
            held = {mark for data in _decode(path) for mark in marks if mark in data}
            if held:
                found[str(path.relative_to(folder))] = held
    return found


def _decode(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    yield data
    for batch in _read_batches(path, data):
        for column in batch.columns:
            for buffer in _list_buffers(column):
                yield buffer.to_pybytes()


def _list_buffers(array: Any) -> Iterator[pa.Buffer]:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    yield from (buffer for buffer in array.buffers() if buffer is not None)
    if isinstance(array, pa.DictionaryArray):
        yield from _list_buffers(array.dictionary)


def _read_batches(path: Path, data: bytes) -> Iterator[pa.RecordBatch]:
    if path.suffix in (".lance", ".idx"):
        yield from LanceFileReader(str(path)).read_all().to_batches()
    elif path.suffix == ".arrow":
        if data.startswith(b"ARROW1"):
            file = pa.ipc.open_file(data)
            yield from (file.get_batch(n) for n in range(file.num_record_batches))
        else:
            yield from pa.ipc.open_stream(data)
    elif path.suffix == ".parquet":
        yield from pq.ParquetFile(io.BytesIO(data)).iter_batches()
