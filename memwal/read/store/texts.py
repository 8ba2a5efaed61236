"""Full-text indexes: how they cut texts into words, and a table in memory that is cut alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import lance
import pyarrow as pa
from lance.query import FullTextOperator, FullTextQuery, MatchQuery, PhraseQuery

from memwal.errors import Unsupported, Usage
from memwal.read.plan.request import Search
from memwal.store.tables.indexes import describe_indexes, index_kind, read_text_index

Settings = Mapping[str, Any]

_ANALYZER = "analyzer"
# All that decides which words a text has.
_CUTTING = (
    "base_tokenizer",
    "language",
    "max_token_length",
    "lower_case",
    "stem",
    "remove_stop_words",
    "custom_stop_words",
    "ascii_folding",
    "min_ngram_length",
    "max_ngram_length",
    "prefix_only",
    "split_identifiers",
    "split_on_numerics",
    "preserve_original",
    "index_operators",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextIndex:
    """A full-text index of a table: what it covers, and how it cuts texts into words.

    `documents` are the texts in it, those of deleted rows too; without `positions` it can't find
    phrases. `identity` is another for every change.
    """

    name: str
    settings: Settings
    positions: bool
    documents: int
    identity: str
    fragment_ids: frozenset[int]

    def cut(self, text: str) -> list[str]:
        """The words of a text, in their order."""
        return [token.text for token in lance.tokenize(text, **self.settings)]

    def count(self, text: str) -> Counter[str]:
        """The words of a text, and how often each is in it."""
        return Counter(self.cut(text))

    def uncovered(self, dataset: Any) -> list[Any]:
        """The table's fragments that are not in the index."""
        return [f for f in dataset.get_fragments() if f.fragment_id not in self.fragment_ids]


def find_text_indexes(dataset: Any, column: str) -> list[TextIndex]:
    """The full-text indexes of a column, by name."""
    found = [d for d in describe_indexes(dataset) if index_kind(d) == "INVERTED"]
    return [_describe(dataset, d) for d in found if list(d.field_names) == [column]]


def choose_text_index(where: str, dataset: Any, wanted: Search) -> TextIndex:
    """The index whose settings say what a text's words are. Raises Usage, Unsupported."""
    column = wanted.column
    kind = dataset.schema.field(column).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise Usage(f"{where}: column {column!r} holds no text that can be searched, but {kind}")
    found = find_text_indexes(dataset, column)
    if not found:
        raise Usage(
            f"{where}: column {column!r} has no full-text index, so nothing says what its words "
            f"are: dataset.create_scalar_index({column!r}, 'INVERTED') makes one"
        )
    index = found[0]
    if any(other.settings != index.settings for other in found):
        names = ", ".join(one.name for one in found)
        raise Usage(
            f"{where}: the full-text indexes of column {column!r} ({names}) cut texts in different "
            "ways; drop all but one"
        )
    if index.settings[_ANALYZER] not in ("text", "code"):
        raise Unsupported(
            "MW-Q05",
            f"{where}: index {index.name} is for {index.settings[_ANALYZER]}, not for texts",
        )
    if wanted.phrase and index.settings["base_tokenizer"] == "ngram":
        raise Usage(f"{where}: index {index.name} holds parts of words, and no phrases")
    if wanted.phrase and not index.positions:
        raise Usage(
            f"{where}: index {index.name} was made without with_position=True, which phrases need"
        )
    return index


def _describe(dataset: Any, described: Any) -> TextIndex:
    settings, documents = read_text_index(dataset, described)
    return TextIndex(
        name=str(described.name),
        settings={
            _ANALYZER: settings.get("lance_tokenizer") or "text",
            **{name: settings.get(name) for name in _CUTTING},
        },
        positions=bool(settings.get("with_position")),
        documents=documents,
        identity=",".join(sorted(str(s.uuid) for s in described.segments)),
        fragment_ids=frozenset(f for s in described.segments for f in s.fragment_ids),
    )


def build_query(search: Search) -> FullTextQuery:
    """The search as Lance's scanner takes it."""
    if search.phrase:
        return PhraseQuery(search.query, search.column)
    operator = FullTextOperator[search.operator.upper()]
    return MatchQuery(search.query, search.column, operator=operator)


def start_text_index(table: pa.Table, column: str, settings: Settings) -> Any:
    """A table in memory whose texts are cut as the settings say, by an index of none of them.

    An index of nothing says how to search row by row: without one Lance cuts the query and the
    texts in two ways.
    """
    dataset = lance.write_dataset(table.slice(0, 0), "memory://")
    known = {name: value for name, value in settings.items() if value is not None}
    build = partial(dataset.create_scalar_index, column, "INVERTED", train=False)
    build(with_position=True, **{"max_token_length": None, **known})
    return lance.write_dataset(table, dataset, mode="append")
