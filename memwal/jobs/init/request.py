"""What one may ask of an init, as it is typed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from memwal.options import Option


@dataclass(frozen=True, kw_only=True)
class InitAsked:
    """How writers are to write to a table."""

    primary_key: Annotated[
        Sequence[str],
        Option(
            meaning="The key's columns, in order; permanent. Default: the table's own key.",
            metavar="COLUMN,...",
        ),
    ] = ()
    spec: Annotated[
        str | None,
        Option(
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
        str | None,
        Option(
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
