"""Tables of texts, and what a search has to find in them, by a plain model."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from memwal.jobs.merge.apply import ShardMerger
from memwal.jobs.merge.job import open_merge_table
from memwal.jobs.merge.request import MergeRequest
from memwal.read import Search
from memwal.run.stores import Stores, open_stores

KEY = {"lance-schema:unenforced-primary-key": "true"}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata=KEY),
        pa.field("text", pa.string()),
        pa.field("n", pa.int64()),
    ]
)
SETTINGS: dict[str, Any] = {"with_position": True}
INDEX = "text_idx"

Texts = Mapping[int, str | None]


def rows_of(texts: Texts) -> pa.Table:
    """Rows with these texts by key; `n` is the key's tenfold."""
    return pa.table(
        {"id": list(texts), "text": list(texts.values()), "n": [10 * key for key in texts]},
        schema=SCHEMA,
    )


@dataclass(kw_only=True)
class TextTable:
    """A table with a full-text index, one shard, and the texts that it has to hold."""

    uri: str
    settings: dict[str, Any]
    truth: dict[int, str | None] = field(default_factory=dict)
    shard: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def dataset(self) -> Any:
        return lance.dataset(self.uri)

    @property
    def stores(self) -> Stores:
        return open_stores(self.uri, {})

    def writer(self, shard: str | None = None) -> Any:
        return self.dataset.mem_wal_writer(shard or self.shard, max_wal_flush_interval_ms=1)

    def flush(self, texts: Texts, deletes: Sequence[int] = (), shard: str | None = None) -> None:
        """One generation: texts put, then keys deleted."""
        with self.writer(shard) as writer:
            if texts:
                writer.put(rows_of(texts))
            if deletes:
                writer.delete(pa.table({"id": pa.array(deletes, pa.int64())}))
        self.truth |= texts
        for key in deletes:
            self.truth.pop(key, None)

    def merge(self, until: int | None = None) -> None:
        stores = self.stores
        merger = ShardMerger(views=stores.views, table=open_merge_table(stores), clock=stores.clock)
        for shard in stores.views.table().shards:
            merger.run(shard.shard_id, MergeRequest(until_generation=until))

    def catch_up(self) -> None:
        self.dataset.optimize.optimize_indices(index_names=[INDEX], num_indices_to_merge=0)

    def generations(self) -> list[Path]:
        return sorted(
            Path(self.uri).glob("_mem_wal/*/*_gen_*"), key=lambda p: int(p.name.split("_")[-1])
        )

    def words(self, text: str) -> list[tuple[int, str]]:
        """Lance's own words of a text; where one was left out, the places tell."""
        options = {k: v for k, v in self.settings.items() if k != "with_position"}
        return [(token.position, token.text) for token in lance.tokenize(text, **options)]

    def find(self, search: Search) -> set[int]:
        """The keys of the texts that match."""
        wanted = self.words(search.query)
        return {key for key, text in self.truth.items() if self._matches(text, wanted, search)}

    def _matches(self, text: str | None, wanted: list[tuple[int, str]], search: Search) -> bool:
        found = set(self.words(text or ""))
        if not wanted:
            return False
        if search.phrase:
            starts = [place for place, _ in found]
            return any(all((n + place, w) in found for place, w in wanted) for n in starts)
        words = {word for _, word in found}
        return (all if search.operator == "and" else any)(word in words for _, word in wanted)


def make_texts(
    uri: object,
    texts: Texts,
    *,
    maintained: bool = True,
    settings: Mapping[str, Any] = SETTINGS,
    **build: Any,
) -> TextTable:
    """A table with these texts in its base, all in a full-text index."""
    dataset = lance.write_dataset(rows_of(texts), str(uri))
    dataset.create_scalar_index("text", "INVERTED", **settings, **build)
    dataset.initialize_mem_wal(maintained_indexes=[INDEX] if maintained else [])
    return TextTable(uri=str(uri), settings=dict(settings), truth=dict(texts))


def zipf_texts(rng: np.random.Generator, count: int, words: int, length: int) -> list[str]:
    """Texts of words whose frequency falls with their rank, as in a language's."""
    share = 1 / np.arange(1, words + 1)
    bounds = np.cumsum(share / share.sum())
    lengths = rng.integers(length // 5, length, size=count)
    numbers = np.minimum(np.searchsorted(bounds, rng.random(lengths.sum())), words - 1)
    named = [f"w{number:x}q" for number in range(words)]
    texts, start = [], 0
    for size in lengths:
        texts.append(" ".join(named[number] for number in numbers[start : start + size]))
        start += size
    return texts
