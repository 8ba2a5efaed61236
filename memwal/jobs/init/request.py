"""What one may ask of an init, as it is typed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from memwal.errors import Usage
from memwal.options import Option
from memwal.rows.expire import Expire, make_expire
from memwal.rows.policy import RowPolicy
from memwal.text import parse_seconds

if TYPE_CHECKING:
    from memwal.model import TableView

_BUCKETS_MAX = 1024
_SPEC = re.compile(
    r"unsharded|manual|bucket\(\s*(.+?)\s*,\s*(\d{1,9})\s*\)|identity\(\s*(.+?)\s*\)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteSpec:
    """How rows are spread over shards: unsharded, bucket, identity, or manual: each writer names
    its own shard.
    """

    kind: str = "unsharded"
    column: str = ""
    num_buckets: int = 0

    def __str__(self) -> str:
        """As `--spec` takes it."""
        more = f", {self.num_buckets}" if self.num_buckets else ""
        return f"{self.kind}({self.column}{more})" if self.column else self.kind


def parse_spec(text: str) -> WriteSpec:
    """Parse `unsharded`, `bucket(COLUMN, N)`, `identity(COLUMN)` or `manual`. Raises Usage."""
    found = _SPEC.fullmatch(text.strip())
    if found is None:
        raise Usage(
            f"--spec {text!r}: expected unsharded, 'bucket(COLUMN, N)', 'identity(COLUMN)' or "
            "manual"
        )
    if found[2] and not 1 <= int(found[2]) <= _BUCKETS_MAX:
        raise Usage(f"--spec {text!r}: expected 1 to {_BUCKETS_MAX} buckets")
    return WriteSpec(
        kind=found[0].partition("(")[0],
        column=found[1] or found[3] or "",
        num_buckets=int(found[2] or 0),
    )


def parse_expire(text: str) -> Expire:
    """When rows expire, from `COLUMN=AGE`. Raises Usage."""
    column, _, age = text.rpartition("=")
    with suppress(ValueError):
        if column and age[-1:].isalpha():
            return make_expire(column, parse_seconds(age))
    raise Usage(f"--expire {text!r}: expected COLUMN=AGE with its unit, such as at=90d")


@dataclass(frozen=True, kw_only=True)
class InitRequest:
    """How writers are to write to a table. None, or an empty key, accepts what the table has.

    `row_policy` is what `policy` says, or else the configuration.
    """

    primary_key: Annotated[
        Sequence[str],
        Option(
            meaning="The key's columns, in order; permanent. Default: the table's own key.",
            metavar="COLUMN,...",
        ),
    ] = ()
    spec: Annotated[
        WriteSpec | None,
        Option(
            parse=parse_spec,
            meaning="unsharded (default: one shard for all rows), 'bucket(COLUMN, N)', "
            "'identity(COLUMN)', or manual: writers choose.",
            metavar="SPEC",
        ),
    ] = None
    maintain: Annotated[
        Sequence[str],
        Option(meaning="Index that writers maintain. Default: all that they can.", metavar="INDEX"),
    ] = ()
    maintain_none: Annotated[
        bool, Option(meaning="Writers maintain no index; only index-catchup does.")
    ] = False
    policy: Annotated[
        Sequence[str],
        Option(
            meaning="A line of a row-merge policy, as in [tables.NAME.policy], such as "
            "'columns.clicks = \"sum\"'. Default: that of the configuration.",
            metavar="TOML",
        ),
    ] = ()
    expire: Annotated[
        Expire | None,
        Option(
            parse=parse_expire,
            meaning="When rows expire, such as at=90d; of a table that has a MemWAL, too. Default: "
            "that of the configuration.",
            metavar="COLUMN=AGE",
        ),
    ] = None
    keys_stay: Annotated[
        bool,
        Option(
            meaning="Allow a spec on a column outside the primary key: no key ever changes its "
            "value there."
        ),
    ] = False
    check_keys: Annotated[
        bool,
        Option(
            meaning="Look for keys that the table holds more than once, which is done anyway where "
            "the key has an index. Once there is a MemWAL, `memwal verify --deep` looks."
        ),
    ] = False
    adopt_clone: Annotated[
        bool,
        Option(
            meaning="Of a clone, a branch, or a copy without _mem_wal: let go of merge progress of "
            "other shards, so that rows written there are merged."
        ),
    ] = False
    row_policy: RowPolicy | None = None

    @property
    def maintained(self) -> tuple[str, ...] | None:
        """The indexes that writers are to maintain; None for all that they can."""
        return () if self.maintain_none else tuple(self.maintain) or None

    def key_of(self, view: TableView) -> tuple[str, ...]:
        """The key that the table has, or else the one asked for."""
        return view.primary_key or tuple(self.primary_key)
