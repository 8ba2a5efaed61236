"""`memwal init`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from memwal.cli.flags import Job, JobFlags, command
from memwal.cli.options import OneTable
from memwal.cli.parse import parse_duration
from memwal.errors import Usage

if TYPE_CHECKING:
    from memwal.rows.expire import Expire

PrimaryKey = Annotated[
    list[str] | None,
    typer.Option(
        "--primary-key",
        metavar="COLUMN,...",
        help="The key's columns, in order; permanent. Default: the table's own key.",
    ),
]
SpecText = Annotated[
    str | None,
    typer.Option(
        "--spec",
        metavar="SPEC",
        help="unsharded (default: one shard for all rows), 'bucket(COLUMN, N)', "
        "'identity(COLUMN)', or manual: writers choose.",
    ),
]
Maintain = Annotated[
    list[str] | None,
    typer.Option(
        "--maintain",
        metavar="INDEX",
        help="Index that writers maintain; repeatable. Default: all that they can.",
    ),
]
MaintainNone = Annotated[
    bool,
    typer.Option("--maintain-none", help="Writers maintain no index; only index-catchup does."),
]
KeysStay = Annotated[
    bool,
    typer.Option(
        "--keys-stay",
        help="Allow a spec on a column outside the primary key: no key ever changes its value "
        "there.",
    ),
]
Policy = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="TOML",
        help="A line of a row-merge policy, as in [tables.NAME.policy], such as "
        "'columns.clicks = \"sum\"'; repeatable. Default: that of the configuration.",
    ),
]
ExpireAfter = Annotated[
    str | None,
    typer.Option(
        "--expire",
        metavar="COLUMN=AGE",
        help="When rows expire, such as at=90d; of a table that has a MemWAL, too. Default: that "
        "of the configuration.",
    ),
]
CheckKeys = Annotated[
    bool,
    typer.Option(
        "--check-keys",
        help="Look for keys that the table holds more than once, which is done anyway where the "
        "key has an index. Once there is a MemWAL, `memwal verify --deep` looks.",
    ),
]
AdoptClone = Annotated[
    bool,
    typer.Option(
        "--adopt-clone",
        help="Of a clone, a branch, or a copy without _mem_wal: let go of merge progress of other "
        "shards, so that rows written there are merged.",
    ),
]


def parse_expire(text: str) -> Expire:
    """When rows expire, from `COLUMN=AGE`. Raises Usage."""
    from memwal.rows.expire import make_expire

    column, equals, age = text.rpartition("=")
    if not equals or not column:
        raise Usage(f"--expire {text!r}: expected COLUMN=AGE, such as at=90d")
    return make_expire(column, parse_duration(age, "--expire"))


@command(JobFlags)
def init(
    table: OneTable,
    primary_key: PrimaryKey = None,
    spec: SpecText = None,
    maintain: Maintain = None,
    maintain_none: MaintainNone = False,
    policy: Policy = None,
    expire: ExpireAfter = None,
    keys_stay: KeysStay = False,
    check_keys: CheckKeys = False,
    adopt_clone: AdoptClone = False,
    *,
    flags: JobFlags,
) -> Job:
    """Make a Lance table ready for MemWAL writers.

    Or says what is in the way. A rerun finishes what a killed run began, and
    changes nothing if the table already is as requested; an existing, different MemWAL is exit 5.
    """
    from memwal.config import make_row_policy
    from memwal.jobs.init.job import InitOptions, run_init
    from memwal.jobs.init.plan import InitRequest, parse_spec

    if maintain and maintain_none:
        raise Usage("--maintain-none: name no index with --maintain beside it")
    request = InitRequest(
        primary_key=tuple(name for text in primary_key or () for name in text.split(",")),
        spec=None if spec is None else parse_spec(spec),
        maintained=() if maintain_none else tuple(maintain) if maintain else None,
        policy=make_row_policy(policy) if policy else None,
        expire=None if expire is None else parse_expire(expire),
        keys_stay=keys_stay,
        checks_keys=check_keys,
        adopts_clone=adopt_clone,
    )
    return flags.job(run_init, InitOptions, table, request=request)
