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
from memwal.rows.keyset import KeySet

KEYS_MAX = 1_000_000
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
    try:
        given = _read_file(file, names, schema) if isinstance(file, str) else file
        values = check_keys(given or parse_keys(key, schema), names, schema)
    except (Usage, OSError, pa.ArrowException, ValueError) as error:
        raise error if not isinstance(file, str) else Usage(f"--keys {file}: {error}") from None
    if len(values) > KEYS_MAX:
        raise Refused("MW-Z02", f"more than {KEYS_MAX} keys in one erasure")
    rows = [dict(zip(names, value, strict=True)) for value in dict.fromkeys(values)]
    kind = pa.schema([(name, schema.field(name).type) for name in names])
    return pa.Table.from_pylist(rows, schema=kind)


def _read_file(
    file: str, names: Sequence[str], schema: pa.Schema
) -> Sequence[Mapping[str, object]]:
    as_texts = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    formats = {
        ".csv": pa.dataset.CsvFileFormat(convert_options=as_texts),
        ".parquet": "parquet",
    }
    if (found := formats.get(suffix := Path(file).suffix.lower())) is None:
        raise Usage("expected a name in .csv or .parquet")
    if not Path(file).is_file():
        raise Usage("no such file")
    opened = pa.dataset.dataset(file, format=found)
    if missing := {*names} - {*opened.schema.names}:
        raise Usage(f"no column {', '.join(sorted(missing))}, which the key has")
    rows: list[dict[str, object]] = opened.head(KEYS_MAX + 1, columns=list(names)).to_pylist()
    if not rows:
        raise Usage("no key is in it")
    if suffix == ".csv":
        return [parse_keys([f"{name}={row[name]}" for name in names], schema) for row in rows]
    return rows


class Keys:
    """The keys, ready to be looked for."""

    def __init__(self, keys: pa.Table) -> None:
        self.table = keys
        self.names = tuple(keys.column_names)
        self._set = KeySet(keys.columns)
        self.count = int(self._set.count)
        found = (pc.unique(column).to_pylist() for column in keys.columns)
        self._texts = [{text for value in values for text in _spell(value)} for values in found]
        types = keys.schema.types
        self._numeric = [pa.types.is_integer(t) or pa.types.is_boolean(t) for t in types]

    def same_as(self, other: pa.Table) -> bool:
        """Whether these are the keys of another table, in any order; each is there once."""
        same = other.schema.equals(self.table.schema) and other.num_rows == self.table.num_rows
        return same and bool(self._set.contains(other.columns).all())

    def select(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The keys that are in these rows, in the table's types."""
        kind = self.table.schema
        return self._set.inside((b.select(self.names).cast(kind) for b in batches), self.names)

    def count_in(self, batches: Iterable[pa.RecordBatch]) -> int:
        """How many rows have one of the keys."""
        return sum(batch.num_rows for batch in self.select(batches))

    def count_in_texts(self, data: bytes) -> int:
        """How many of a document's texts name a key."""
        return sum(self._names_key(run.decode("utf-8", "replace")) for run in _RUN.findall(data))

    def count_in_documents(self, data: bytes, *, own: bool = False) -> int | None:
        """How many lines of JSON name a key, by fields and values; None where one is torn.

        In JSON a value may be written with escapes, and a number stands beside its field's name. A
        document that goes over several lines counts once. Of memwal's `own` ones only texts do:
        their numbers and fields are no row's.
        """
        parts = [data] if _parse(data) is not _TORN else data.splitlines()
        found = [self._document_names_key(part, own) for part in parts if part.strip()]
        named = sum(one or False for one in found)
        return None if None in found and not named else named

    def _document_names_key(self, data: bytes, own: bool) -> bool | None:
        document, text = _parse(data), data.decode("utf-8", "replace")
        if document is _TORN:
            return self._names_key(text) or None
        if own:
            return any(self._names_key(v) for v in _walk(document) if isinstance(v, str))
        values = {text for value in _walk(document) for text in _spell(value)}
        return self._has_key(values.union(*map(_list_words, values))) or self._names_key(text)

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
