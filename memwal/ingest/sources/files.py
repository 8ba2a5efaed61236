"""The files that an ingest reads: Parquet, Arrow, CSV, JSON lines and Lance, local and in buckets.

A file is cut into chunks of a fixed number of rows from its beginning, wherever reading starts, so
that a run which resumes reads the same chunks as the run before it would have.

Of a Lance table, one version is read. Standard input is spooled to a file first, and identified by
its content. So piped data is ingested exactly once, too: when the same bytes are piped again, the
run resumes where the run before stopped.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import islice, takewhile
from pathlib import PurePosixPath
from tempfile import NamedTemporaryFile
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from memwal.errors import Missing, StoreUnavailable, Unsupported, Usage
from memwal.ingest.request import SpooledInput
from memwal.ingest.sources.columns import SourceColumns
from memwal.ingest.sources.text_files import (
    check_separator,
    read_csv,
    read_json,
    read_json_schema,
    read_names,
)
from memwal.ingest.values.exact import make_plain, make_plain_schema
from memwal.ingest.values.numbered_chunks import cut_batches, find_groups, skip_rows
from memwal.options import SourceFormat
from memwal.store.objects.opening import check_encoding, normalise_uri
from memwal.store.records.ingests import SourceFile
from memwal.store.tables.datasets import LanceTables
from memwal.threads import side_by_side

# What decides which rows a fragment has, and their values.
_TOLD = ("id", "physical_rows", "deletion_file", "overlays")
_TOLD_OF_FILES = ("path", "fields", "column_indices", "base_id")

_AZURE_KEYS = ("account_key", "sas_token", "client_id", "client_secret", "tenant_id")
_ALIASES = {
    "access_key": "account_key",
    "master_key": "account_key",
    "sas_key": "sas_token",
    "endpoint_url": "endpoint",
}
# The expiry of a token given as an option is not known, and pyarrow requires one.
_NEVER = datetime(2100, 1, 1, tzinfo=UTC)
_FILES_MAX = 100_000
_READERS_MAX = 16
_DIGEST_BLOCK_BYTES = 1024 * 1024
CHUNK_ROWS = 128 * 1024
_CHUNK_BYTES = 32 * 1024 * 1024
_SAMPLE_ROWS = 1024
_BAD_COMPRESSION = re.compile("decompress|inflate|corrupt|truncated compressed", re.IGNORECASE)
_COMPRESSED = ("", ".gz", ".zst", ".bz2")
_ENDINGS: dict[str, SourceFormat] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
    **{f".csv{more}": "csv" for more in _COMPRESSED},
    **{f".{n}{more}": "jsonl" for n in ("jsonl", "ndjson") for more in _COMPRESSED},
}
# .json files may hold anything: they are read when named, not when found in a folder.
_NAMED_ENDINGS = _ENDINGS | {f".json{more}": "jsonl" for more in _COMPRESSED}


def digest_fragments(dataset: Any) -> str:
    """A digest of what decides which rows a table's version has, and their values."""
    told = []
    for fragment in sorted(dataset.get_fragments(), key=lambda f: f.fragment_id):
        metadata = fragment.metadata.to_json()
        files = [{name: file.get(name) for name in _TOLD_OF_FILES} for file in metadata["files"]]
        told.append([{name: metadata.get(name) for name in _TOLD}, files])
    text = json.dumps(told, sort_keys=True, default=str)
    return f"fragments:{hashlib.sha256(text.encode()).hexdigest()}"


def open_system(scheme: str, options: Mapping[str, str], account: str = "") -> fs.FileSystem:
    """The store of a scheme; `account` is Azure's, if the address names it.

    What the options leave out is looked up where the cloud's own tools look. Raises Unsupported.
    """
    short = {_shorten(name): value for name, value in options.items()}
    endpoint = short.get("endpoint") or short.get("base_url") or ""
    plain = "http" if endpoint.startswith("http://") else "https"
    host = endpoint.partition("://")[2].partition("/")[0] or endpoint or None
    try:
        if scheme == "s3":
            return fs.S3FileSystem(
                access_key=short.get("access_key_id"),
                secret_key=short.get("secret_access_key"),
                session_token=short.get("session_token"),
                region=short.get("region") or short.get("default_region"),
                endpoint_override=endpoint.partition("://")[2] or endpoint or None,
                scheme=plain,
            )
        if scheme == "gs":
            if any(name.startswith(("service_account", "application_")) for name in short):
                raise Unsupported(
                    "MW-I32",
                    "gs:// sources are read with GOOGLE_APPLICATION_CREDENTIALS or the option "
                    "google_storage_token, not with a service account given as an option",
                )
            token = short.get("token") or os.environ.get("GOOGLE_STORAGE_TOKEN")
            return fs.GcsFileSystem(
                access_token=token,
                credential_token_expiration=_NEVER if token else None,
                endpoint_override=host,
                scheme=plain,
            )
        if scheme not in ("az", "abfss"):
            raise ValueError("pyarrow has no such store")
        return fs.AzureFileSystem(
            account
            or short.get("account_name")
            or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", ""),
            blob_storage_authority=host,
            blob_storage_scheme=plain,
            dfs_storage_authority=host,
            dfs_storage_scheme=plain,
            **{name: short[name] for name in _AZURE_KEYS if name in short},
        )
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise Unsupported("MW-I33", f"{scheme}:// sources can't be read: {error}") from None


def _shorten(name: str) -> str:
    name = name.lower()
    for prefix in ("aws_", "azure_", "google_", "storage_"):
        name = name.removeprefix(prefix)
    return _ALIASES.get(name, name)


class SourceFiles:
    """Finds and reads source files with one set of storage options.

    Raises Usage for a source that does not exist or can't be read as its format, StoreUnavailable.
    """

    def __init__(
        self,
        storage_options: Mapping[str, str],
        columns: SourceColumns | None = None,
        spooled: SpooledInput | None = None,
    ) -> None:
        """`spooled` is the content of standard input."""
        self._options = dict(storage_options)
        self._columns = columns or SourceColumns()
        self._spooled = spooled
        self._systems: dict[tuple[str, str], fs.FileSystem] = {}
        self.passed_over: dict[str, list[str]] = {}
        """By folder, the files that were skipped because their names tell no format."""

    # ---- finding

    def find(
        self, addresses: Sequence[str], wanted: SourceFormat | None = None
    ) -> list[SourceFile]:
        """The files at the addresses, in the order given; those of a folder by name."""
        files: dict[str, SourceFile] = {}
        for address in addresses:
            if address == STANDARD_INPUT:
                found = [self._describe_input(wanted)]
            else:
                uris = self._expand(normalise_uri(address))
                found = [file for uri in uris for file in self._find_behind(uri, wanted)]
            for file in found:
                files.setdefault(file.uri, file)
            if len(files) > _FILES_MAX:
                raise Usage(f"more than {_FILES_MAX} source files; give parts of them at a time")
        return side_by_side(self._add_etag, list(files.values()), _READERS_MAX)

    def _describe_input(self, wanted: SourceFormat | None) -> SourceFile:
        if self._spooled is None or wanted in (None, "lance"):
            raise Usage("standard input (-) needs --format csv, jsonl, parquet or arrow")
        size, digest = self._spooled.size_bytes, self._spooled.digest
        return SourceFile(
            uri=STANDARD_INPUT, format=wanted, size_bytes=size, stamp=digest, digest=digest
        )

    def _expand(self, uri: str) -> list[str]:
        """The addresses that match a pattern."""
        system, path = self._system(uri)
        if not is_pattern(uri):
            return [uri]
        with self._translating(uri):
            if system.get_file_info(path).type != fs.FileType.NotFound:
                return [uri]  # an existing name that contains wildcard characters
            found = find_matches(path, system)
        if not found:
            raise Usage(f"{uri}: nothing matches")
        scheme, slashes, rest = uri.partition("://")
        if not slashes:
            return found
        bucket = rest.partition("/")[0]
        return [f"{scheme}://{bucket}/{match.partition('/')[2]}" for match in found]

    def _add_etag(self, file: SourceFile) -> SourceFile:
        """The file with the etag that its store has for it, if any; takes a request."""
        system, path = self._system(file.uri)
        if file.format == "lance" or isinstance(system, fs.LocalFileSystem):
            return file
        with self._translating(file.uri):
            known = system.open_input_stream(path, compression=None).metadata() or {}
        found = {_as_text(name).lower(): _as_text(value) for name, value in known.items()}
        return file.model_copy(update={"etag": found.get("etag", "").strip('"')})

    def read_digest(
        self, file: SourceFile, on_read: Callable[[int], None] = lambda size_bytes: None
    ) -> str:
        """The digest of the file's bytes; `on_read` gets the number of bytes of each read."""
        system, path = self._system(file.uri)
        digest = hashlib.sha256()
        with (
            self._translating(file.uri),
            system.open_input_stream(path, compression=None) as stream,
        ):
            while data := stream.read(_DIGEST_BLOCK_BYTES):
                digest.update(data)
                on_read(len(data))
        return f"sha256:{digest.hexdigest()}"

    def _find_behind(self, uri: str, wanted: SourceFormat | None) -> list[SourceFile]:
        check_encoding(uri)
        system, path = self._system(uri)
        with self._translating(uri):
            info = system.get_file_info(path)
        if info.type == fs.FileType.NotFound:
            raise Usage(f"{uri}: no such source")
        if info.type == fs.FileType.File:
            return [self._describe_file(uri, info, wanted or _require_format(uri))]
        versions = system.get_file_info(f"{path}/_versions")
        if wanted == "lance" or versions.type == fs.FileType.Directory:
            return [self._describe_lance(uri)]
        return self._list_folder(uri, path, system, wanted)

    def _list_folder(
        self, uri: str, path: str, system: fs.FileSystem, wanted: SourceFormat | None
    ) -> list[SourceFile]:
        selector = fs.FileSelector(path, recursive=True)
        with self._translating(uri):
            infos = sorted(system.get_file_info(selector), key=lambda info: info.path)
        found, others = [], []
        for info in infos:
            below = info.path[len(path) :].strip("/")
            hidden = any(part.startswith(("_", ".")) for part in below.split("/"))
            if info.type != fs.FileType.File or hidden:
                continue
            kind = wanted or _guess_format(info.path)
            if kind is not None:
                found.append(self._describe_file(f"{uri}/{below}", info, kind))
            else:
                others.append(below)
        self.passed_over |= {uri: others} if others else {}
        if not found:
            raise Usage(f"{uri}: the folder holds no source file ({', '.join(_ENDINGS)})")
        return found

    def _describe_file(self, uri: str, info: fs.FileInfo, kind: SourceFormat) -> SourceFile:
        return SourceFile(
            uri=uri, format=kind, size_bytes=int(info.size or 0), stamp=str(info.mtime_ns or 0)
        )

    def _describe_lance(self, uri: str) -> SourceFile:
        dataset = self._open_dataset(uri, None)
        version = int(dataset.version)
        return SourceFile(uri=uri, format="lance", size_bytes=0, stamp=f"version {version}")

    # ---- reading

    def read_schema(self, file: SourceFile) -> pa.Schema:
        """The file's columns, under the table's names for them."""
        own = make_plain_schema(self._read_own_schema(file))
        return self._columns.convert_schema(own, file.uri)

    def _read_own_schema(self, file: SourceFile) -> pa.Schema:
        if file.format == "lance":
            return self._open_lance(file).schema
        with self._translating(file.uri, file.format):
            if file.format == "parquet":
                return self._open_parquet(file).schema_arrow
            if file.format == "csv":
                names, types = read_names(self._open_bytes(file)), self._columns.source_types
                check_separator(names, types, file.uri)
                return pa.schema([(name, types.get(name, pa.string())) for name in names])
            if file.format == "jsonl":
                return read_json_schema(self._open_bytes(file), self._columns)
            return self._open_arrow(file)[0]

    def count_rows(self, file: SourceFile) -> int | None:
        """How many rows the file has; None when that takes reading them."""
        if file.format == "lance":
            return int(self._open_lance(file).count_rows())
        if file.format != "parquet":
            return None
        with self._translating(file.uri, file.format):
            return int(self._open_parquet(file).metadata.num_rows)

    def choose_chunk_rows(self, file: SourceFile) -> int:
        """How many rows to read at a time: fewer where rows are wide."""
        first = next(self.read_chunks(file, _SAMPLE_ROWS), None)
        if not first:
            return CHUNK_ROWS
        row_bytes = max(1, first.nbytes // len(first))
        return int(max(_SAMPLE_ROWS, min(CHUNK_ROWS, _CHUNK_BYTES // row_bytes)))

    def read_chunks(
        self,
        file: SourceFile,
        chunk_rows: int,
        first_row: int = 0,
        *,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.Table]:
        """The rows from `first_row` on, `chunk_rows` at a time.

        `first_row` is where a chunk of this size ended. If it is not a multiple of `chunk_rows`,
        that was the file's last chunk, and nothing follows. Chunks of CSV are text, and both these
        and JSON lines carry what was left out (`memwal.ingest.sources.text_files`).
        """
        if first_row % chunk_rows:
            return
        wanted = None if columns is None else list(columns)
        if self._columns.changes:
            own = self._read_own_schema(file)
            if columns is None:
                columns = self._columns.convert_schema(own, file.uri).names
            wanted = self._columns.find_source_names(columns, own.names)
        with self._translating(file.uri, file.format):
            for rows in map(make_plain, self._cut_chunks(file, chunk_rows, first_row, wanted)):
                yield self._columns.convert(rows, columns) if columns is not None else rows

    def _cut_chunks(
        self, file: SourceFile, chunk_rows: int, first_row: int, wanted: list[str] | None
    ) -> Iterator[pa.Table]:
        if file.format == "csv":
            chunks = read_csv(lambda: self._open_bytes(file), chunk_rows, wanted)
        elif file.format == "jsonl":
            chunks = read_json(self._open_bytes(file), self._columns, chunk_rows, wanted)
        else:
            return cut_batches(self._read_batches(file, chunk_rows, first_row, wanted), chunk_rows)
        return islice(chunks, first_row // chunk_rows, None)

    def _read_batches(
        self, file: SourceFile, chunk_rows: int, first_row: int, wanted: list[str] | None
    ) -> Iterator[pa.RecordBatch]:
        if file.format == "lance":
            scan = self._open_lance(file).scanner(
                columns=wanted, offset=first_row, scan_in_order=True
            )
            yield from scan.to_batches()
            return
        if file.format == "parquet":
            parquet = self._open_parquet(file)
            groups, skipped = find_groups(parquet.metadata, first_row)
            found = parquet.iter_batches(chunk_rows, row_groups=groups, columns=wanted)
        else:
            _, found = self._open_arrow(file)
            skipped = 0
        yield from skip_rows(found, first_row - skipped, wanted)

    def _open_parquet(self, file: SourceFile) -> pq.ParquetFile:
        system, path = self._system(file.uri)
        return pq.ParquetFile(system.open_input_file(path))

    def _open_arrow(self, file: SourceFile) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Schema and batches of an Arrow file, from its beginning."""
        system, path = self._system(file.uri)
        opened = system.open_input_file(path)
        if bytes(opened.read(6)) == b"ARROW1":
            arrow = pa.ipc.open_file(opened)
            return arrow.schema, (arrow.get_batch(i) for i in range(arrow.num_record_batches))
        opened.seek(0)
        stream = pa.ipc.open_stream(opened)
        return stream.schema, iter(stream)

    # ---- opening

    def _open_bytes(self, file: SourceFile) -> Any:
        """The file as a stream, decompressed by pyarrow."""
        system, path = self._system(file.uri)
        return system.open_input_stream(path)

    def _system(self, uri: str) -> tuple[fs.FileSystem, str]:
        if uri == STANDARD_INPUT and self._spooled is not None:
            return fs.LocalFileSystem(), self._spooled.path
        scheme, slashes, path = uri.partition("://")
        if not slashes:
            return fs.LocalFileSystem(), uri
        bucket, _, below = path.partition("/")
        container, _, host = bucket.partition("@")
        store = scheme, bucket
        if store not in self._systems:
            self._systems[store] = open_system(scheme, self._options, host.partition(".")[0])
        return self._systems[store], f"{container}/{below}" if below else container

    def _open_lance(self, file: SourceFile) -> Any:
        return self._open_dataset(file.uri, int(file.stamp.removeprefix("version ")))

    def _open_dataset(self, uri: str, version: int | None) -> Any:
        return LanceTables(uri, self._options).base(version)

    def digest_table(self, file: SourceFile) -> str:
        """The digest of a Lance source's version. Raises Missing."""
        return digest_fragments(self._open_lance(file))

    @contextmanager
    def _translating(self, uri: str, kind: SourceFormat | None = None) -> Iterator[None]:
        """Translate errors to ours; errors in a file's content only when its `kind` is given."""
        try:
            yield
        except (FileNotFoundError, Missing):
            raise Usage(f"{uri}: no such source") from None
        except OSError as error:
            if kind is not None and _BAD_COMPRESSION.search(str(error)):
                raise Usage(f"{uri}: can't be read as compressed {kind}: {error}") from None
            raise StoreUnavailable(f"{uri}: {error}") from None
        except (pa.ArrowException, ValueError, KeyError) as error:
            if isinstance(error, UnicodeDecodeError) and kind is None:
                name = error.object.decode(errors="backslashreplace")
                raise Usage(f"{uri}: the name {name!r} is not UTF-8: rename it") from None
            if kind is None:
                raise
            text = str(error).split("\n", 1)[0]
            raise Usage(f"{uri}: can't be read as {kind}: {text}") from None


def _require_format(uri: str) -> SourceFormat:
    found = _guess_format(uri, _NAMED_ENDINGS)
    if found is None:
        raise Usage(f"{uri}: can't tell its format from its name; give --format")
    return found


def _guess_format(path: str, endings: Mapping[str, SourceFormat] = _ENDINGS) -> SourceFormat | None:
    name = path.lower()
    return next((kind for ending, kind in endings.items() if name.endswith(ending)), None)


def _as_text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


_MAGIC = "*?["


def is_pattern(uri: str) -> bool:
    """Whether the address has a wildcard: `*`, `?`, `[…]`, or `**` for folders of any depth."""
    return any(sign in uri for sign in _MAGIC)


def find_matches(path: str, system: fs.FileSystem) -> list[str]:
    """The paths that match, sorted, without hidden ones and those below a folder that matches."""
    parts = path.split("/")
    fixed = len(list(takewhile(lambda part: not is_pattern(part), parts)))
    if isinstance(system, fs.LocalFileSystem):
        found: Iterable[str] = glob.glob(path, recursive=True)  # noqa: PTH207
    else:
        deep = len(parts) > fixed + 1 or "**" in parts
        below = fs.FileSelector("/".join(parts[:fixed]), recursive=deep, allow_not_found=True)
        found = (info.path for info in system.get_file_info(below))
        found = (p for p in found if does_match(p.split("/"), parts))
    matches: dict[str, None] = {}
    for match in sorted(name.rstrip("/") for name in found):
        own = match.split("/")[fixed:]
        hidden = any(part.startswith(("_", ".")) and part not in parts for part in own)
        if not hidden and not any(
            str(folder) in matches for folder in PurePosixPath(match).parents
        ):
            matches[match] = None
    return list(matches)


def does_match(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the parts of a path match the parts of a pattern."""
    if not pattern or not path:
        return not path and all(part == "**" for part in pattern)
    if pattern[0] == "**":
        return does_match(path, pattern[1:]) or does_match(path[1:], pattern)
    return fnmatchcase(path[0], pattern[0]) and does_match(path[1:], pattern[1:])


STANDARD_INPUT = "-"
_BLOCK_BYTES = 1024 * 1024


@contextmanager
def spool_input(
    sources: Sequence[str], engine: str, stream: BinaryIO | None = None
) -> Iterator[SpooledInput | None]:
    """Read standard input to its end, if it is among the sources. Raises Usage, Unsupported."""
    if STANDARD_INPUT not in sources:
        yield None
        return
    if engine == "spark":
        raise Unsupported("MW-I31", "standard input is read by this process only: --engine local")
    source = stream or sys.stdin.buffer
    if source.isatty():
        raise Usage("standard input (-) is the terminal: pipe a file into it")
    digest, size_bytes = hashlib.sha256(), 0
    with NamedTemporaryFile(prefix="memwal-input-") as spool:
        try:
            while data := source.read(_BLOCK_BYTES):
                digest.update(data)
                size_bytes += spool.write(data)
            spool.flush()
        except OSError as error:
            raise Usage(f"standard input could not be kept in {spool.name}: {error}") from None
        yield SpooledInput(
            path=spool.name, size_bytes=size_bytes, digest=f"sha256:{digest.hexdigest()}"
        )
