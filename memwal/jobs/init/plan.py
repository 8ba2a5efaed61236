"""Plans what `init` has to do to a table, step by step, or what stops it. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from memwal.errors import MemWalError, Refused, Unsupported, Usage
from memwal.format.layout import TOMBSTONE
from memwal.model import ColumnInfo, ShardField, ShardId, ShardSpec, TableView
from memwal.report import DONE, NOTHING_TO_DO, TableReport
from memwal.rows.expire import EXPIRE_KEY, WITH_POLICY, Expire, check_expire, describe_expire
from memwal.rows.policy import RowPolicy, is_stored
from memwal.rows.progress import StrangerShard, find_untouched
from memwal.text import name_some

# The types that pylance 14.0.2 can hash; it refuses all others.
_KEY_TYPES = frozenset(
    {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
    | {"bool", "string", "large_string", "binary", "large_binary"}
)
_MAINTAINED_KINDS = ("BTreeIndexDetails", "VectorIndexDetails", "InvertedIndexDetails")
_BUCKETS_MAX = 1024
_BLOB = "extension<lance.blob.v2"
_NAMED_MAX = 20
_NO_KEY = "the table has no primary key: its MemWAL can't be merged"
_MOVED = (
    "a key for which that changes is in two shards, and nothing says which of its rows is newer"
)


class Step(StrEnum):
    """The commits of `init`, in the order in which they are made.

    The MemWAL comes after the key and the policy, as no writer or merge may see it without them.
    EXPIRE is made in a table with a MemWAL, too, where it is new or another one. PROGRESS is for a
    table that has a MemWAL already, with inherited progress to let go of.
    """

    PRIMARY_KEY = "primary_key"
    POLICY = "policy"
    EXPIRE = "expire"
    MEM_WAL = "mem_wal"
    PROGRESS = "progress"


class SpecKind(StrEnum):
    """How rows are spread over shards. With MANUAL, each writer names its own shard."""

    UNSHARDED = "unsharded"
    BUCKET = "bucket"
    IDENTITY = "identity"
    MANUAL = "manual"


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteSpec:
    """A write spec that pylance can make."""

    kind: SpecKind
    column: str = ""
    num_buckets: int = 0

    def __str__(self) -> str:
        """As `--spec` takes it."""
        more = f", {self.num_buckets}" if self.num_buckets else ""
        return f"{self.kind}({self.column}{more})" if self.column else str(self.kind)


DEFAULT_SPEC = WriteSpec(kind=SpecKind.UNSHARDED)


@dataclass(frozen=True, kw_only=True, slots=True)
class InitRequest:
    """What is asked for. None, or an empty key, accepts what the table has."""

    primary_key: tuple[str, ...] = ()
    spec: WriteSpec | None = None
    maintained: tuple[str, ...] | None = None
    policy: RowPolicy | None = None
    expire: Expire | None = None
    keys_stay: bool = False
    """Whether the user vouches that no key ever changes its value in a spec's non-key column."""
    checks_keys: bool = False
    """Whether to look for keys that the base holds more than once, even without a key index."""
    adopts_clone: bool = False
    """Whether to let go of merge progress that does not belong to the table's own shards."""

    def key_of(self, view: TableView) -> tuple[str, ...]:
        """The key that the table has, or else the one asked for."""
        return view.primary_key or self.primary_key


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundTable:
    """A table as it was read; if it has no MemWAL, the view has an empty one.

    `unfit` are reasons in its Arrow types against writers, or against the spec or policy that is
    asked for. `leftovers` are shards of a former MemWAL that still hold rows. The other two are for
    a table with a MemWAL whose clone is to be adopted: `inherited` has, by shard, the progress that
    does not belong to the shard beside it, and `first` the part of it that came with the clone,
    where merges may have gone on above it.
    """

    view: TableView
    unfit: tuple[MemWalError, ...] = ()
    leftovers: tuple[str, ...] = ()
    inherited: Mapping[ShardId, int] = field(default_factory=dict)
    first: Mapping[ShardId, int] = field(default_factory=dict)

    @property
    def mixed(self) -> tuple[ShardId, ...]:
        """The shards that have had merges of their own above inherited progress."""
        return tuple(s for s, generation in self.first.items() if generation < self.inherited[s])

    @property
    def inherited_ranges(self) -> dict[ShardId, range]:
        """By shard, the generations that earlier versions may call merged although they are not."""
        return {s: range(self.first.get(s, g), g + 1) for s, g in self.inherited.items()}

    @property
    def has_mem_wal(self) -> bool:
        """Whether the version has a MemWAL index."""
        return self.view.manifest.mem_wal is not None


def find_inherited(view: TableView) -> FoundTable:
    """The FoundTable of a MemWAL table, with the progress that its own shards did not make."""
    merged = view.mem_wal.merged
    strangers = {
        ShardId(b.shard_id): b.inherited_generation
        for b in view.broken
        if isinstance(b, StrangerShard)
    }
    return FoundTable(
        view=view,
        inherited={s: merged[s] for s in (*find_untouched(view), *strangers)},
        first=strangers,
    )


def parse_spec(text: str) -> WriteSpec:
    """Parse `unsharded`, `bucket(COLUMN, N)`, `identity(COLUMN)` or `manual`. Raises Usage."""
    text = text.strip()
    if text in (SpecKind.UNSHARDED, SpecKind.MANUAL):
        return WriteSpec(kind=SpecKind(text))
    if found := re.fullmatch(r"bucket\(\s*(.+?)\s*,\s*(\d{1,9})\s*\)", text):
        if not 1 <= int(found[2]) <= _BUCKETS_MAX:
            raise Usage(f"--spec {text!r}: expected 1 to {_BUCKETS_MAX} buckets")
        return WriteSpec(kind=SpecKind.BUCKET, column=found[1], num_buckets=int(found[2]))
    if found := re.fullmatch(r"identity\(\s*(.+?)\s*\)", text):
        return WriteSpec(kind=SpecKind.IDENTITY, column=found[1])
    raise Usage(
        f"--spec {text!r}: expected unsharded, 'bucket(COLUMN, N)', 'identity(COLUMN)' or manual"
    )


def plan_steps(found: FoundTable, request: InitRequest) -> tuple[Step, ...]:
    """The steps that are left to do; none if the table is as asked.

    Raises Usage, Unsupported or Refused if something stops it: the first error, with the texts of
    all.
    """
    view = found.view
    if found.has_mem_wal:
        if view.primary_key and request.primary_key not in ((), view.primary_key):
            raise _refuse_key(view).at(view.uri)
        if differing := list(_find_differences(view, request)):
            raise Refused(
                "MW-T01",
                f"{view.uri}: has a MemWAL already, and another one than asked for: "
                f"{'; '.join(differing)}. `memwal quiesce {view.uri}` first, where it is to change",
            )
        if request.adopts_clone:
            _check_read(view)
        expire = _plan_expire(view, request)
        return (*expire, Step.PROGRESS) if _has_inherited(found) else expire
    if request.adopts_clone:
        raise Usage(f"{view.uri}: --adopt-clone: it has no MemWAL, and so nothing was inherited")
    if problems := [*_find_problems(view, request), *found.unfit, *_find_leftovers(found)]:
        raise problems[0].say(f"{view.uri}: {'; '.join(problem.text for problem in problems)}")
    steps = [] if view.primary_key else [Step.PRIMARY_KEY]
    if request.policy is not None and view.policy_text is None:
        steps.append(Step.POLICY)
    return (*steps, *_plan_expire(view, request), Step.MEM_WAL)


def _plan_expire(view: TableView, request: InitRequest) -> tuple[Step, ...]:
    """The step of a setting that is new; raises Refused for one that the table can't have."""
    if request.expire is None:
        return ()
    if request.policy is not None:
        raise Refused("MW-P17", WITH_POLICY).at(view.uri)
    try:
        check_expire(request.expire, view)
    except Refused as error:
        raise error.at(view.uri) from None
    is_stored = view.manifest.config.get(EXPIRE_KEY) == request.expire.as_text()
    return () if is_stored else (Step.EXPIRE,)


def _check_read(view: TableView) -> None:
    """Raise the error of a shard that can't be read: whose its progress is can't be told."""
    for shard in view.broken:
        if not isinstance(shard, StrangerShard):
            raise shard.error


def _has_inherited(found: FoundTable) -> bool:
    """Whether there is progress to let go of; raises Refused if that would count rows twice."""
    if found.mixed and found.view.policy_text is not None:
        raise Refused(
            "MW-T11",
            f"{found.view.uri}: shards {_list(found.mixed)} have merged generations of their own "
            "on top of the inherited progress: to merge them again would count the operands of the "
            "row-merge policy twice. Make a new clone, adopt it, and write the rows to that",
        )
    return bool(found.inherited)


def _list_warnings(view: TableView, request: InitRequest) -> Iterator[str]:
    if not request.key_of(view):
        yield _NO_KEY
    elif column := _find_mover(view, request):
        yield f"a row's shard depends on {column}, outside the primary key: {_MOVED}"


def _find_mover(view: TableView, request: InitRequest) -> str:
    """The column of the requested spec, if it is outside the key; else an empty string."""
    column = "" if request.spec is None else request.spec.column
    return "" if column in request.key_of(view) else column


# ---- a table without a MemWAL


def _refuse_key(view: TableView) -> Refused:
    return Refused(
        "MW-T02", f"its primary key is {_list(view.primary_key)}, and Lance changes no key"
    )


def _find_problems(view: TableView, request: InitRequest) -> Iterator[MemWalError]:
    columns = {column.name: column for column in view.columns}
    if view.is_legacy:
        yield Unsupported(
            "MW-K10",
            "its files are in Lance's legacy format, to which nothing can be merged: write it anew "
            f'(`lance.write_dataset(lance.dataset("{view.uri}"), NEW)`), and init that',
        )
    if view.primary_key and request.primary_key not in ((), view.primary_key):
        yield _refuse_key(view)
    key = request.key_of(view)
    if not key:
        fit = [c.name for c in view.columns if c.type_text in _KEY_TYPES]
        yield Usage(
            f"it has no primary key, by which rows replace each other: name one with --primary-key "
            f"(columns that can be one: {_list(fit)})"
        )
    shard_column = request.spec.column if request.spec is not None else ""
    for name in dict.fromkeys((*key, *filter(None, [shard_column]))):
        if name not in columns:
            yield Usage(f"it has no column {name!r}, but {_list(tuple(columns))}")
    moving = _find_mover(view, request)
    if key and moving in columns and not request.keys_stay:
        yield Refused(
            "MW-T10",
            f"a row's shard would depend on {moving!r}, which is not in the primary key "
            f"({_list(key)}): {_MOVED}. Take a column of the key (--spec 'bucket({key[0]}, 16)'), "
            f"or, if no key ever changes its {moving!r}, add --keys-stay",
        )
    for name in key:
        if name in columns:
            yield from _judge_key(view, columns[name])
    if len(set(key)) < len(key):
        yield Usage("--primary-key names a column twice")
    for column in view.columns:
        yield from _judge_column(column)
    yield from _judge_indexes(view, request.maintained or ())
    if request.policy is not None and view.policy_text is not None:
        yield from (Refused("MW-T03", text) for text in _compare_policy(view, request.policy))


def _judge_key(view: TableView, column: ColumnInfo) -> Iterator[MemWalError]:
    name = column.name
    if column.type_text not in _KEY_TYPES:
        yield Unsupported(
            "MW-T04",
            f"the key column {name!r} is of type {column.type_text}; a key is of integers, "
            "strings, binary or bool",
        )
    elif column.nullable:
        yield Refused(
            "MW-T05",
            f"the key column {name!r} may be NULL, and a key's may not: "
            f'`lance.dataset("{view.uri}").alter_columns({{"path": "{name}", "nullable": False}})` '
            "forbids it, if no row has NULL there",
        )
    if '"' in name:
        yield Unsupported("MW-K03", f"the key column {name!r} has a quote in its name")


def _judge_column(column: ColumnInfo) -> Iterator[MemWalError]:
    if column.name == TOMBSTONE:
        text = f"a column is called {TOMBSTONE}, by which generations mark deletes"
        yield Unsupported("MW-K03", text)
    if "`" in column.name or not column.name:
        yield Unsupported("MW-K03", f"a column is called {column.name!r}, which Lance can't select")
    if _BLOB in column.type_text and not column.type_text.startswith(_BLOB):
        yield Unsupported(
            "MW-T07",
            f"column {column.name!r} has blobs inside ({column.type_text}): a blob has to be a "
            "column of its own",
        )


def _judge_indexes(view: TableView, names: Sequence[str]) -> Iterator[MemWalError]:
    kinds = {i.name: i.type_url.rpartition(".")[2] for i in view.manifest.indexes}
    for name in names:
        if name not in kinds:
            yield Usage(f"it has no index {name!r}, but {_list(tuple(kinds))}")
        elif kinds[name] not in _MAINTAINED_KINDS:
            yield Unsupported(
                "MW-T08",
                f"index {name!r} ({kinds[name].removesuffix('IndexDetails')}) can't be maintained "
                "by writers; only BTREE, vector and full-text indexes can. Leave it out: "
                "index-catchup extends it all the same",
            )


def _find_leftovers(found: FoundTable) -> Iterator[MemWalError]:
    if found.leftovers:
        shown = "; ".join(name_some(found.leftovers, _NAMED_MAX, "shards"))
        yield Refused(
            "MW-T09",
            f"a former MemWAL left rows behind, which a new one would bring back: {shown}. Restore "
            "the version that had it and merge them, or delete the table's _mem_wal folder",
        )


# ---- a table that has one


def _find_differences(view: TableView, request: InitRequest) -> Iterator[str]:
    if request.primary_key not in ((), view.primary_key):
        yield f"its primary key is {_list(view.primary_key)}, not {_list(request.primary_key)}"
    spec = describe_spec(view)
    if request.spec is not None and str(request.spec) != spec:
        yield f"its spec is {spec}, not {request.spec}"
    has = find_maintained(view)
    if request.maintained is not None and (has is None or set(has) != set(request.maintained)):
        shown = "every index" if has is None else _list(has)
        yield f"maintained is {shown}, not {_list(request.maintained)}"
    if request.policy is not None:
        yield from _compare_policy(view, request.policy)


def _compare_policy(view: TableView, policy: RowPolicy) -> Iterator[str]:
    if view.policy_text is None:
        yield "it has no row-merge policy; `memwal merge` stores that of the configuration"
    elif not is_stored(policy, view.policy_text):
        yield f"its row-merge policy is {view.policy_text}, not {policy.as_text()}"


def find_maintained(view: TableView) -> tuple[str, ...] | None:
    """The indexes that writers maintain; None for all, including future ones."""
    state = view.mem_wal
    return None if state.maintain_all_indexes else state.maintained_indexes


def describe_spec(view: TableView) -> str:
    """The table's write spec, in the syntax of `--spec` if that can express it."""
    specs = view.mem_wal.shard_specs
    return "; ".join(_describe_one(view, spec) for spec in specs) or SpecKind.MANUAL


def _describe_one(view: TableView, spec: ShardSpec) -> str:
    return " + ".join(_describe_field(view, field) for field in spec.fields)


def _describe_field(view: TableView, field: ShardField) -> str:
    names = [_name_column(view.columns, field_id) for field_id in field.source_ids]
    words = [*names, *(v for k, v in field.parameters.items() if k != "column")]
    called = field.transform or field.expression or ""
    return f"{called}({', '.join(words)})" if words else called


def _name_column(columns: Sequence[ColumnInfo], field_id: int, above: str = "") -> str:
    for column in columns:
        if column.field_id == field_id:
            return above + column.name
        if found := _name_column(column.children, field_id, f"{above}{column.name}."):
            return found
    return "" if above else f"field {field_id}"


def _list(names: Sequence[str]) -> str:
    return ", ".join(name_some(names, _NAMED_MAX, "more")) or "none"


# ---- what is reported


class InitTableReport(TableReport):
    """One table: what it is, or in a dry run would be.

    `maintained_indexes` is null for every index. `steps` are the commits that the run made, or
    would make: primary_key, policy, expire, mem_wal, progress; the last lets go of inherited
    progress, of the shards of `let_go`. `shard_id` is the one that takes every row, if one does.
    """

    primary_key: tuple[str, ...] = ()
    spec: str = SpecKind.UNSHARDED
    maintained_indexes: tuple[str, ...] | None = None
    policy: dict[str, Any] | None = None
    expire: dict[str, Any] | None = None
    steps: tuple[str, ...] = ()
    let_go: tuple[str, ...] = ()
    shard_id: str | None = None
    warnings: tuple[str, ...] = ()


def report_init(
    name: str,
    before: int,
    found: FoundTable,
    request: InitRequest,
    steps: Sequence[Step],
    shard_id: str | None = None,
) -> InitTableReport:
    """The report of a table that is ready, or could be made so by `steps`."""
    view, ready = found.view, found.has_mem_wal
    has = None if request.policy is None else request.policy.as_document()
    return InitTableReport(
        table=name,
        outcome=DONE if steps else NOTHING_TO_DO,
        version_before=before,
        version_after=view.version,
        primary_key=request.key_of(view),
        spec=describe_spec(view) if ready else str(request.spec or DEFAULT_SPEC),
        maintained_indexes=find_maintained(view) if ready else request.maintained,
        policy=json.loads(view.policy_text) if view.policy_text else has,
        expire=request.expire.as_document() if request.expire else describe_expire(view),
        steps=tuple(steps),
        let_go=tuple(sorted(found.inherited)),
        shard_id=shard_id,
        warnings=tuple(_list_warnings(view, request)),
    )
