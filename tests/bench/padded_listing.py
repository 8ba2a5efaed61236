"""Listings of a table's shards that show more WAL entries than are stored: a million, at no cost.

Runs in the S3 server's process. The entries that are made up are old, and at positions that no
manifest knows of: nothing reads or deletes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from xml.sax.saxutils import escape

from memwal.format import layout
from memwal.model import ShardId

_FIRST_POSITION = 1_000
_LONG_AGO = "2020-01-01T00:00:00.000Z"
_SIZE_BYTES = 900


@dataclass(kw_only=True)
class PaddedListing:
    """What ListObjectsV2 answers below `below`, the folder of a table's shards.

    From shard to shard there are ever more objects, `fewest` to `most`, those stored among them.
    """

    keys: Any
    """moto's: name -> object."""
    below: str
    fewest: int
    most: int
    _padding: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shards: dict[str, int] = {}
        for name in self._stored(self.below):
            shard = name.removeprefix(self.below).partition("/")[0]
            shards[shard] = shards.get(shard, 0) + 1
        for number, shard in enumerate(sorted(shards)):
            mirrored = len(shards) - 1 - number
            step = (self.most - self.fewest) * min(number, mirrored) // max(1, len(shards) - 1)
            wanted = self.fewest + step if number < mirrored else self.most - step
            positions = range(_FIRST_POSITION, _FIRST_POSITION + wanted - shards[shard])
            paths = (layout.wal_entry_path(ShardId(shard), at) for at in positions)
            self._padding[shard] = [self.below + path.partition("/")[2] for path in paths]

    @property
    def objects(self) -> int:
        """How many objects there are below, stored or made up."""
        return len(self._stored(self.below)) + sum(map(len, self._padding.values()))

    def page(self, query: dict[str, list[str]]) -> bytes:
        """One page, as S3 tells it."""
        prefix = query["prefix"][0]
        after = query.get("continuation-token", query.get("start-after", [""]))[0]
        most = int(query.get("max-keys", ["1000"])[0])
        delimited = "delimiter" in query
        found = self._folders(prefix) if delimited else self._names(prefix)
        page = list(islice((name for name in found if name > after), most + 1))
        more, page = len(page) > most, page[:most]
        parts = [self._told(name, folder=delimited and name.endswith("/")) for name in page]
        if more:
            parts.append(f"<NextContinuationToken>{page[-1]}</NextContinuationToken>")
        return (
            '<?xml version="1.0" encoding="UTF-8"?>'
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Prefix>{escape(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount>"
            f"<MaxKeys>{most}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>"
            f"{''.join(parts)}</ListBucketResult>"
        ).encode()

    def _stored(self, prefix: str) -> list[str]:
        return sorted(name for name in dict(self.keys) if name.startswith(prefix))

    def _names(self, prefix: str) -> Iterator[str]:
        """Names below the prefix, ascending; shard by shard, so that a page costs a page."""
        stored: dict[str, list[str]] = {}
        for name in self._stored(prefix):
            stored.setdefault(name.removeprefix(self.below).partition("/")[0], []).append(name)
        for shard, names in stored.items():
            made_up = (name for name in self._padding.get(shard, ()) if name.startswith(prefix))
            yield from sorted([*names, *made_up])

    def _folders(self, prefix: str) -> Iterator[str]:
        """Names of objects and of folders directly below the prefix; each shard has stored ones."""
        names = self._stored(prefix) if prefix == self.below else self._names(prefix)
        rests = ((name, name.removeprefix(prefix)) for name in names)
        found = {
            f"{prefix}{rest.partition('/')[0]}/" if "/" in rest else name for name, rest in rests
        }
        return iter(sorted(found))

    def _told(self, name: str, *, folder: bool) -> str:
        if folder:
            return f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
        key = self.keys.get(name)
        dated, size, etag = (
            (_LONG_AGO, _SIZE_BYTES, '"0"')
            if key is None
            else (key.last_modified_ISO8601, key.size, key.etag)
        )
        return (
            f"<Contents><Key>{escape(name)}</Key><LastModified>{dated}</LastModified>"
            f"<ETag>{escape(etag)}</ETag><Size>{size}</Size></Contents>"
        )
