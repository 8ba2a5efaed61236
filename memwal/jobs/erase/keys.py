"""The keys of an erasure: read as they were given, and looked for in rows and in texts.

Texts are what Lance and memwal write that is not columns of rows: a delete's condition, an error.
They are searched word by word, so that ten thousand keys cost no more than one. A number alone
proves nothing there, since counts and positions are numbers too: its column has to be named beside.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Context, Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset

from memwal.errors import Refused, Usage
from memwal.read.table import check_keys, parse_keys
from memwal.rows.keyset import KeySet, group_batches

KEYS_MAX = 1_000_000
_FILE_BYTES_MAX = 1024 * 1024 * 1024
_SHORT = 4
_TORN = object()
_RUN = re.compile(rb"[^\x00-\x1f]+")
_WORD = re.compile(r"[\w.@+\-:/]+")
_NUMBER = re.compile(r"[+-]?[\d.][\d.eE+-]*")
_DIGITS = Context(prec=400)
_HEX = re.compile(r"\b(?:[xX]'|0[xX])?((?:[0-9a-fA-F]{2})+)\b")


def read_keys(
    key: Sequence[str],
    file: str | Sequence[Mapping[str, object]] | None,
    names: Sequence[str],
    schema: pa.Schema,
) -> pa.Table:
    """The keys that were asked for, each once, in the table's types; `file` can be the keys.

    Raises Usage for none, for both, and for what is no key; Refused for too many.
    """
    if bool(key) == bool(file):
        raise Usage("name the rows to erase: either --key or --keys")
    kind = pa.schema([(name, schema.field(name).type) for name in names])
    if not isinstance(file, str):
        values = dict.fromkeys(check_keys(file or parse_keys(key, schema), names, schema))
        rows = [dict(zip(names, value, strict=True)) for value in values]
        return _limit(pa.Table.from_pylist(rows, schema=kind), "keys")
    try:
        return _limit(_read_file(Path(file), kind), f"--keys {file}")
    except OSError as error:
        raise Usage(f"--keys {file}: {error.strerror or error}") from None
    except (pa.ArrowException, ValueError) as error:
        raise Usage(f"--keys {file}: no keys of the table: {error}") from None


def _read_file(file: Path, kind: pa.Schema) -> pa.Table:
    if file.stat().st_size > _FILE_BYTES_MAX:
        raise Refused("MW-Z02", f"{file}: more than {_FILE_BYTES_MAX} bytes of keys")
    as_texts = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(kind.names, pa.string()))
    formats = {
        ".csv": pa.dataset.CsvFileFormat(convert_options=as_texts),
        ".parquet": "parquet",
    }
    if (found := formats.get(file.suffix.lower())) is None:
        raise Usage(f"--keys {file}: expected a name in .csv or .parquet")
    opened = pa.dataset.dataset(file, format=found)
    if missing := {*kind.names} - {*opened.schema.names}:
        raise Usage(f"--keys {file}: no column {', '.join(sorted(missing))}, which the key has")
    rows = opened.to_table(columns=kind.names)
    keys = pa.table([_cast(rows[field.name], field.type) for field in kind], schema=kind)
    if any(column.null_count for column in keys.columns):
        raise Usage(f"--keys {file}: a key column is never NULL")
    keys = keys.group_by(kind.names, use_threads=False).aggregate([]).cast(kind)
    if not keys.num_rows:
        raise Usage(f"--keys {file}: no key is in it")
    return keys


def _limit(keys: pa.Table, where: str) -> pa.Table:
    if keys.num_rows > KEYS_MAX:
        raise Refused("MW-Z02", f"{where}: {keys.num_rows} keys; at most {KEYS_MAX} in one erasure")
    return keys


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Bytes in a text file are hexadecimal digits after 0x, as with --key."""
    if pa.types.is_string(column.type) and (
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    ):
        values = column.to_pylist()
        try:
            made = [v if v is None else bytes.fromhex(v.removeprefix("0x")) for v in values]
        except ValueError as error:
            raise pa.ArrowInvalid(str(error)) from None
        return pa.chunked_array([pa.array(made, kind)])
    return column.cast(kind)


class Keys:
    """The keys, ready to be looked for."""

    def __init__(self, keys: pa.Table) -> None:
        self.table = keys
        self.names = tuple(keys.column_names)
        self._types = keys.schema.types
        self._set = KeySet(keys.columns)
        self._texts = [_list_texts(column) for column in keys.columns]
        self._numeric = [pa.types.is_integer(t) or pa.types.is_boolean(t) for t in self._types]

    @property
    def count(self) -> int:
        """How many keys there are."""
        return int(self._set.count)

    def same_as(self, other: pa.Table) -> bool:
        """Whether these are the keys of another table, in any order."""
        if tuple(other.column_names) != self.names or other.num_rows != self.table.num_rows:
            return False
        if other.schema.types != self._types:
            return False
        return bool(self._set.contains(other.columns).all()) if other.num_rows else True

    def select(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows with one of the keys."""
        for group in group_batches(batches):
            chunks = [
                pa.chunked_array([b.column(name) for b in group]).cast(kind)
                for name, kind in zip(self.names, self._types, strict=True)
            ]
            found, start = self._set.contains(chunks), 0
            for batch in group:
                mask = found[start : start + batch.num_rows]
                start += batch.num_rows
                if mask.any():
                    yield batch.filter(pa.array(mask))

    def count_in(self, batches: Iterable[pa.RecordBatch]) -> int:
        """How many rows have one of the keys."""
        return sum(batch.num_rows for batch in self.select(batches))

    def count_values(self, values: Iterable[pa.Array]) -> int:
        """How many values are the key's; for a key of one column."""
        known = pc.unique(self.table.column(0).combine_chunks())
        return sum(
            int(pc.sum(pc.is_in(found.cast(self._types[0]), value_set=known)).as_py() or 0)
            for found in values
        )

    def count_in_texts(self, data: bytes) -> int:
        """How many of a document's texts name a key."""
        return sum(self._names_key(run.decode("utf-8", "replace")) for run in _RUN.findall(data))

    def count_in_documents(self, data: bytes) -> int | None:
        """How many lines of JSON name a key, by fields and values; None where one is torn.

        In JSON a value may be written with escapes, and a number stands beside its field's name. A
        document that goes over several lines counts once.
        """
        parts = [data] if _parse(data) is not _TORN else data.splitlines()
        found = [self._document_names_key(part) for part in parts if part.strip()]
        named = sum(one or False for one in found)
        return None if None in found and not named else named

    def _document_names_key(self, data: bytes) -> bool | None:
        document, text = _parse(data), data.decode("utf-8", "replace")
        if document is _TORN:
            return self._names_key(text) or None
        values = {text for value in _walk(document) for text in _spell(value)}
        return self._has_key(values.union(*map(_list_words, values))) or self._names_key(text)

    def count_in_errors(self, data: bytes) -> int | None:
        """How many texts in a JSON document name a key; its numbers and fields are its own.

        None for a torn one that names none as far as it goes.
        """
        document = _parse(data)
        if document is _TORN:
            return self.count_in_texts(data) or None
        return sum(self._names_key(text) for text in _walk(document) if isinstance(text, str))

    def _names_key(self, text: str) -> bool:
        return self._has_key(_list_words(text))

    def _has_key(self, words: set[str]) -> bool:
        for name, known, numeric in zip(self.names, self._texts, self._numeric, strict=True):
            found = words & known
            named = name in words
            if not any(named or (len(word) >= _SHORT and not numeric) for word in found):
                return False
        return True


def _parse(data: bytes) -> object:
    try:
        return json.loads(data, parse_float=Decimal)
    except (ValueError, RecursionError):
        return _TORN


def _list_words(text: str) -> set[str]:
    """What may be a value in a text: it itself, its words, and what stands between quotes."""
    found = _WORD.findall(text)
    words = {w.strip(".:") for w in found} | set(found) | {text}
    # An apostrophe may be part of a word, so that quotes pair up wrongly: any two may be a pair.
    words |= {part.replace("\0", "'") for part in text.replace("''", "\0").split("'")}
    words |= set(text.split('"'))
    escaped = text.replace("\\\\", "\1").replace('\\"', "\0").split('"')
    words |= {part.replace("\0", '"').replace("\1", "\\") for part in escaped}
    words |= {spelt for word in found if (spelt := _spell_number(word)) is not None}
    return words | {f"0x{digits.lower()}" for digits in _HEX.findall(text)}


def _spell_number(text: str) -> str | None:
    """A number in digits, the same for 5, 5.0 and 50e-1; None for what is none."""
    if not _NUMBER.fullmatch(text):
        return None
    try:
        number = _DIGITS.create_decimal(text).normalize(_DIGITS)
    except ArithmeticError:
        return None
    # An exponent may ask for more digits than memory has.
    return f"{number:f}" if abs(number.adjusted()) <= _DIGITS.prec else None


def _walk(value: object) -> Iterator[object]:
    """The names of fields in a document, and all values."""
    if isinstance(value, dict):
        yield from map(str, value)
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _walk(item)
    elif value is not None:
        yield value


def _list_texts(column: pa.ChunkedArray) -> set[str]:
    return {text for value in pc.unique(column).to_pylist() for text in _spell(value)}


def _spell(value: object) -> Iterator[str]:
    """A value as documents and errors have it. A key is an integer, a bool, a text or bytes."""
    match value:
        case bool():
            yield str(value).lower()
        case bytes():
            yield from (f"0x{value.hex()}", b64encode(value).decode())
        case int() | Decimal():
            yield str(value)
            if (spelt := _spell_number(str(value))) is not None:
                yield spelt
        case _:
            yield str(value)
