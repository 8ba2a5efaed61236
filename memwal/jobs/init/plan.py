"""Plans what `init` has to do to a table, step by step, or what stops it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from memwal.errors import MemWalError, Refused, Unsupported, Usage
from memwal.format.layout import TOMBSTONE
from memwal.jobs.init.request import InitRequest, WriteSpec
from memwal.model import ColumnInfo, ShardField, ShardId, TableView
from memwal.report import DONE, NOTHING_TO_DO, TableReport
from memwal.rows.expire import EXPIRE_KEY, WITH_POLICY, check_expire, describe_expire
from memwal.rows.policy import RowPolicy, is_stored
from memwal.rows.progress import StrangerShard, find_untouched
from memwal.text import name_some

# The types that pylance 14.0.2 can hash; it refuses all others.
_KEY_TYPES = frozenset(
    {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
    | {"bool", "string", "large_string", "binary", "large_binary"}
)
_MAINTAINED_KINDS = ("BTreeIndexDetails", "VectorIndexDetails", "InvertedIndexDetails")
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


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundTable:
    """A table as it was read; if it has no MemWAL, the view has an empty one.

    `in_the_way` are reasons against one that more than its version tells: the Arrow types of its
    columns, keys that it holds twice, rows of a former MemWAL. `inherited` is for a table with a
    MemWAL whose clone is to be adopted: by shard, the progress that does not belong to it, from
    where it came with the clone up to where it is now. Earlier versions may call these generations
    merged although they are not.
    """

    view: TableView
    in_the_way: tuple[MemWalError, ...] = ()
    inherited: Mapping[ShardId, range] = field(default_factory=dict)


def find_inherited(view: TableView) -> FoundTable:
    """The FoundTable of a MemWAL table, with the progress that its own shards did not make."""
    merged = view.mem_wal.merged
    strangers = {
        ShardId(b.shard_id): b.inherited_generation
        for b in view.broken
        if isinstance(b, StrangerShard)
    }
    inherited = {
        s: range(strangers.get(s, merged[s]), merged[s] + 1)
        for s in (*find_untouched(view), *strangers)
    }
    return FoundTable(view=view, inherited=inherited)


def plan_steps(found: FoundTable, request: InitRequest) -> tuple[Step, ...]:
    """The steps that are left to do; none if the table is as asked.

    Raises Usage, Unsupported or Refused if something stops it: the first error, with the texts of
    all.
    """
    view = found.view
    if view.has_mem_wal:
        if view.primary_key and _asks_other_key(view, request):
            raise _refuse_key(view).at(view.uri)
        if differing := list(_find_differences(view, request)):
            raise Refused(
                "MW-T01",
                f"{view.uri}: has a MemWAL already, and another one than asked for: "
                f"{'; '.join(differing)}. `memwal quiesce {view.uri}` first, where it is to change",
            )
        if request.adopt_clone:
            _check_read(view)
        expire = _plan_expire(view, request)
        return (*expire, Step.PROGRESS) if _has_inherited(found) else expire
    if request.adopt_clone:
        raise Usage(f"{view.uri}: --adopt-clone: it has no MemWAL, and so nothing was inherited")
    if problems := [*_find_problems(view, request), *found.in_the_way]:
        raise problems[0].say(f"{view.uri}: {'; '.join(problem.text for problem in problems)}")
    steps = [] if view.primary_key else [Step.PRIMARY_KEY]
    if request.row_policy is not None and view.policy_text is None:
        steps.append(Step.POLICY)
    return (*steps, *_plan_expire(view, request), Step.MEM_WAL)


def _plan_expire(view: TableView, request: InitRequest) -> tuple[Step, ...]:
    """The step of a setting that is new; raises Refused for one that the table can't have."""
    if request.expire is None:
        return ()
    if request.row_policy is not None:
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
    mixed = [s for s, generations in found.inherited.items() if len(generations) > 1]
    if mixed and found.view.policy_text is not None:
        raise Refused(
            "MW-T11",
            f"{found.view.uri}: shards {_list(mixed)} have merged generations of their own "
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


def _asks_other_key(view: TableView, request: InitRequest) -> bool:
    return tuple(request.primary_key) not in ((), view.primary_key)


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
    if view.primary_key and _asks_other_key(view, request):
        yield _refuse_key(view)
    key = request.key_of(view)
    if not key:
        fit = [c.name for c in view.columns if c.type_text in _KEY_TYPES]
        yield Usage(
            f"it has no primary key, by which rows replace each other: name one with --primary-key "
            f"(columns that can be one: {_list(fit)})"
        )
    shard_column = request.spec.column if request.spec is not None else ""
    for name in dict.fromkeys((*key, shard_column)):
        if name and name not in columns:
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
    if request.row_policy is not None and view.policy_text is not None:
        yield from (Refused("MW-T03", text) for text in _compare_policy(view, request.row_policy))


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


# ---- a table that has one


def _find_differences(view: TableView, request: InitRequest) -> Iterator[str]:
    if _asks_other_key(view, request):
        yield f"its primary key is {_list(view.primary_key)}, not {_list(request.primary_key)}"
    spec = describe_spec(view)
    if request.spec is not None and str(request.spec) != spec:
        yield f"its spec is {spec}, not {request.spec}"
    has = find_maintained(view)
    if request.maintained is not None and (has is None or set(has) != set(request.maintained)):
        shown = "every index" if has is None else _list(has)
        yield f"maintained is {shown}, not {_list(request.maintained)}"
    if request.row_policy is not None:
        yield from _compare_policy(view, request.row_policy)


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
    specs = (
        " + ".join(_describe_field(view, field) for field in spec.fields)
        for spec in view.mem_wal.shard_specs
    )
    return "; ".join(specs) or "manual"


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
    spec: str = "unsharded"
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
    view, ready = found.view, found.view.has_mem_wal
    has = None if request.row_policy is None else request.row_policy.as_document()
    return InitTableReport(
        table=name,
        outcome=DONE if steps else NOTHING_TO_DO,
        version_before=before,
        version_after=view.version,
        primary_key=request.key_of(view),
        spec=describe_spec(view) if ready else str(request.spec or WriteSpec()),
        maintained_indexes=find_maintained(view) if ready else request.maintained,
        policy=json.loads(view.policy_text) if view.policy_text else has,
        expire=request.expire.as_document() if request.expire else describe_expire(view),
        steps=tuple(steps),
        let_go=tuple(sorted(found.inherited)),
        shard_id=shard_id,
        warnings=tuple(_list_warnings(view, request)),
    )
