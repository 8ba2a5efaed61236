"""Reads blob columns (`lance.blob.v2`) in the form that a commit accepts: bytes, or an address.

A blob may be the address of a file, which anybody reads with his own rights. So what a writer put
there must not lead further than the table's owner said: below the table's folder, or below a base
that the table has registered.

Addresses are compared by scheme, bucket and the parts of their path, each decoded once. One that
two readers could take for two things (an encoded slash or dots, a sign that stays encoded, a user,
a port, a query) is no place at all, and so below none. No link is followed, and nothing is fetched.

A blob's bytes are in its table's own files, or the blob is the address of another file. Lance's
`all_binary` fetches both alike, with the reader's permissions: a writer could make us read a file
that the writer may not read. So this module reads the descriptors, and bytes only from the table's
own files; an address is passed on and not followed.

Between the check of a row's descriptor and the read of its bytes, Lance reads the data file again.
Somebody who replaces that file at that very instant can still have an address fetched.

Columns that an older table declared as blobs (`lance-encoding:blob`, format 2.1 and before) hold no
addresses; they are read as bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
from lance.blob import BlobType, blob_array

from memwal.errors import Corruption, Refused, Unsupported
from memwal.model import ColumnInfo
from memwal.rows.fold import ROW_ADDRESS
from memwal.store.tables.lance_calls import call_lance

_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*)://([a-z0-9._-]*)(?:/(.*))?", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")
# A query, a fragment; and what is still there after decoding would be decoded by the next reader.
_AMBIGUOUS = set("?#")

_BLOB = "extension<lance.blob.v2<"
_OWN_KINDS = (0, 1, 2)  # in the data file, packed with others, in a file of its own
_EXTERNAL = 3
_SHOWN_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class Place:
    """A folder or file: `parts` of its path below a bucket, or below the root of this host."""

    scheme: str
    bucket: str
    parts: tuple[str, ...]

    def holds(self, other: Place) -> bool:
        """Whether the other lies below this one."""
        same = (self.scheme, self.bucket) == (other.scheme, other.bucket)
        depth = len(self.parts)
        return same and len(other.parts) > depth and other.parts[:depth] == self.parts


def place_of(address: str) -> Place | None:
    """The place of an absolute local path or an address with a scheme; None for any other text."""
    if _CONTROL.search(address) or address != address.strip():
        return None
    if address.startswith("/"):
        return _place("file", "", address[1:].split("/"))
    found = _ADDRESS.fullmatch(address)
    if found is None or _AMBIGUOUS & set(address):
        return None
    scheme, bucket, path = found[1].lower(), found[2], found[3] or ""
    if scheme == "file":
        if bucket not in ("", "localhost"):
            return None
        bucket = ""
    elif not bucket:
        return None
    try:
        parts = [unquote(part, errors="strict") for part in path.split("/")]
    except UnicodeDecodeError:
        return None
    if any(set(part) & set("/%") or _CONTROL.search(part) for part in parts):
        return None
    return _place(scheme, bucket, parts)


def _place(scheme: str, bucket: str, parts: list[str]) -> Place | None:
    if parts[-1] == "":
        parts = parts[:-1]
    if any(part in ("", ".", "..") for part in parts):
        return None
    return Place(scheme, bucket, tuple(parts))


def is_below(address: str, folders: Iterable[str]) -> bool:
    """Whether the address lies below one of the folders; never for what has no place."""
    place = place_of(address)
    if place is None:
        return False
    return any(folder is not None and folder.holds(place) for folder in map(place_of, folders))


def blob_columns(columns: Sequence[ColumnInfo]) -> frozenset[str]:
    """Names of the columns that are blobs, or contain blobs."""
    return frozenset(column.name for column in columns if _BLOB in column.type_text)


def read_schema(dataset: Any) -> pa.Schema:
    """The schema that a read of all columns has: blobs as `BlobType`, in older formats as bytes.

    Raises Unsupported for columns that Lance can't read, such as one with a backtick in its name.
    """
    scanner = call_lance(lambda: dataset.scanner(blob_handling="all_binary"))
    schema: pa.Schema = call_lance(lambda: scanner.projected_schema)
    for place, field in enumerate(dataset.schema):
        if _BLOB in str(field.type):
            schema = schema.set(place, field)
    return with_whole_blobs(schema)


def with_whole_blobs(schema: pa.Schema) -> pa.Schema:
    """The schema with each blob as the full `BlobType`, which can also hold a range of a file."""
    for place, field in enumerate(schema):
        if isinstance(field.type, BlobType):
            schema = schema.set(place, field.with_type(BlobType()))
    return schema


def as_storage(table: pa.Table) -> pa.Table:
    """The table with blobs as plain structs, for a table in memory that Lance is to search."""
    for place, field in enumerate(table.schema):
        if isinstance(field.type, BlobType):
            plain = pa.field(field.name, field.type.storage_type)
            table = table.set_column(place, plain, table[field.name].cast(plain.type))
    return table


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """Where addresses may lead: below the table's folder, or below a base that it registered.

    Lance's commits accept addresses below a registered base only, not in the table's folder.
    """

    root: str
    bases: tuple[str, ...]

    def check(self, where: str, address: str, *, committing: bool) -> None:
        """Raise Refused for an address that is out of bounds, or that a commit can't accept."""
        if is_below(address, self.bases):
            return
        shown = ascii(address[:_SHOWN_CHARS_MAX])
        if not is_below(address, [self.root]):
            raise Refused(
                "MW-B02",
                f"{where}: a blob is the address {shown}, outside of the table's folder and of its "
                "registered bases, and is not followed; have the row written anew, or register a "
                "base that holds the file (dataset.add_bases) if this writer may refer to it",
            )
        if committing:
            raise Refused(
                "MW-B02",
                f"{where}: a blob is the address {shown}, in the table's own folder, and Lance "
                "takes such an address in a merge only below a registered base: register its "
                "folder (dataset.add_bases)",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class BlobReader:
    """Reads the blobs of one opened dataset; `columns` are those that are or contain blobs.

    Without `bounds` every address is passed on. That is for the base table, whose addresses were
    put there by somebody who may commit to it.
    """

    where: str
    dataset: Any
    columns: frozenset[str]
    bounds: Bounds | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Options for Lance's scanner, whose batches must then go through `read`."""
        if not self.columns:
            return {"blob_handling": "all_binary"}
        return {"blob_handling": "blobs_descriptions", "with_row_address": True}

    def read(self, batch: pa.RecordBatch, *, committing: bool = False) -> pa.RecordBatch:
        """The batch with values in place of descriptors.

        Raises Refused for an address that is out of bounds, Corruption for a descriptor that makes
        no sense, Unsupported for blobs inside other columns.
        """
        for name in self.columns.intersection(batch.schema.names):
            if not isinstance(self.dataset.schema.field(name).type, BlobType):
                raise Unsupported(
                    "MW-B04", f"{self.where}: column {name!r} has blobs inside, which can't be read"
                )
            place = batch.schema.get_field_index(name)
            values = self._values(name, batch, committing)
            batch = batch.set_column(place, pa.field(name, values.type), values)
        return batch

    def _values(self, name: str, batch: pa.RecordBatch, committing: bool) -> pa.Array:
        descriptors: Sequence[Mapping[str, Any] | None] = batch.column(name).to_pylist()
        addresses = batch.column(ROW_ADDRESS).to_pylist()
        for found in descriptors:
            if found is not None and found["kind"] in _OWN_KINDS and found["blob_uri"]:
                raise Corruption(
                    "MW-B05", f"{self.where}: a blob in {name!r} has both bytes and an address"
                )
        own = [
            at
            for at, found in zip(addresses, descriptors, strict=True)
            if found is not None and found["kind"] in _OWN_KINDS
        ]
        data = dict(self.dataset.read_blobs(name, addresses=own)) if own else {}
        rows = []
        for at, found in zip(addresses, descriptors, strict=True):
            if found is None or found["kind"] in _OWN_KINDS:
                rows.append(None if found is None else {"data": data[at]})
            elif found["kind"] == _EXTERNAL:
                rows.append(self._reference(name, found, committing))
            else:
                raise Corruption(
                    "MW-B05",
                    f"{self.where}: a blob in {name!r} is of the unknown kind {found['kind']}",
                )
        kind = BlobType()
        return pa.ExtensionArray.from_storage(kind, pa.array(rows, kind.storage_type))

    def _reference(self, name: str, found: Mapping[str, Any], committing: bool) -> dict[str, Any]:
        """The absolute address, with the range of the file if the blob is only a part of it."""
        address, base_id = found["blob_uri"], found["blob_id"]
        if base_id:
            base = self.dataset.base_paths().get(base_id)
            if base is None or base.is_dataset_root:
                raise Corruption(
                    "MW-B05",
                    f"{self.where}: a blob in {name!r} is of base {base_id}, which the table does "
                    "not have",
                )
            folder = base.path if "://" in base.path else f"file://{quote(base.path)}"
            address = f"{folder.rstrip('/')}/{quote(address)}"
        if self.bounds is not None:
            self.bounds.check(self.where, address, committing=committing)
        ranged = found["size"] > 0
        return {
            "uri": address,
            "position": found["position"] if ranged else None,
            "size": found["size"] if ranged else None,
        }


def nulls(kind: pa.DataType, rows: int) -> pa.Array:
    """A column of nulls."""
    if isinstance(kind, BlobType):
        return blob_array([None] * rows)
    return pa.nulls(rows, kind)


def as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array as `kind`; rows in memory have blobs as plain structs, which are wrapped."""
    if isinstance(kind, BlobType) and pa.types.is_struct(array.type):
        return pa.ExtensionArray.from_storage(kind, array)
    return array if array.type == kind else array.cast(kind)
