"""Which of two rules gives a table's shard values, and why. Pure.

The spec and pylance 14 agree on `identity`, and on nothing else. A table's rows
are where its writers put them, so for a spec that pylance can evaluate pylance's values are the
right ones: its writers' routers call `lance.mem_wal.evaluate_sharding_spec`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from memwal.sharding.encoding import plain_type, pylance_hashes
from memwal.sharding.spec import Sources, Spec, SpecField, Transform, field_sources


class Rule(StrEnum):
    """Whose definition of the transforms holds."""

    SPEC = "spec"
    PYLANCE = "pylance"


@dataclass(frozen=True, kw_only=True, slots=True)
class RoutingRule:
    """The rule for one spec; `differences` are those that can show in this spec's values."""

    rule: Rule
    reason: str
    differences: tuple[str, ...] = ()


_EVALUATED = frozenset({Transform.IDENTITY, Transform.BUCKET, Transform.UNSHARDED})
_BUCKET = (
    "a bucket is (hash & 0x7fffffff) % N, not abs(hash) % N",
    "NULL is in bucket 0, not NULL",
)
_BY_WIDTH = (
    "numbers of up to 32 bits hash as 4 bytes: a promoted column changes its buckets (rule 3)"
)
_TEXT = "after the last block of four bytes, each byte is hashed as a block of its own"


def rule_of(spec: Spec, sources: Sources) -> RoutingRule:
    """The rule that a table with this spec is routed by."""
    for field in spec.fields:
        why = _not_pylance(field, sources)
        if why:
            return RoutingRule(
                rule=Rule.SPEC,
                reason=f"field {field.field_id!r}: {why}, so no pylance writer routes by it",
            )
    differences: dict[str, None] = {}
    for field in spec.fields:
        differences |= dict.fromkeys(_differences(field, sources))
    return RoutingRule(
        rule=Rule.PYLANCE,
        reason="pylance evaluates every field of it, and routes rows by what it finds",
        differences=tuple(differences),
    )


def _not_pylance(field: SpecField, sources: Sources) -> str:
    """Why pylance refuses the field, or nothing."""
    if field.transform not in _EVALUATED:
        return f"pylance has no {field.transform}"
    for source in field_sources(field, sources):
        if source is None:
            return "its source column is not in the schema"
        if field.transform is Transform.BUCKET and not pylance_hashes(source.type):
            return f"pylance refuses {source.type} as a bucket column"
    return ""


def _differences(field: SpecField, sources: Sources) -> tuple[str, ...]:
    if field.transform is Transform.UNSHARDED:
        return ("unsharded is not in the spec",)
    if field.transform is not Transform.BUCKET:
        return ()
    kinds = [plain_type(source.type) for source in field_sources(field, sources) if source]
    textual = any(str(kind) in ("string", "large_string") for kind in kinds)
    return (*_BUCKET, _TEXT if textual else _BY_WIDTH)
