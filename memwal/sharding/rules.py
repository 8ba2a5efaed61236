"""Which of two rules gives a table's shard values. Pure.

The spec and pylance 14 agree on `identity`, and on nothing else. A table's rows are where its
writers put them, so pylance's values are the right ones for a spec that pylance can evaluate: its
writers' routers call `lance.mem_wal.evaluate_sharding_spec`. By pylance's rule

- a bucket is `(hash & 0x7fffffff) % N`, not `abs(hash) % N`, and NULL is in bucket 0, not NULL;
- numbers of up to 32 bits hash as 4 bytes: a promoted column changes its buckets (rule 3);
- after the last block of four bytes of a text, each byte is hashed as a block of its own;
- there is `unsharded`, which the spec does not have.
"""

from __future__ import annotations

from enum import StrEnum

from memwal.sharding.encoding import is_hashed_by_pylance
from memwal.sharding.spec import Sources, Spec, SpecField, Transform, field_sources


class Rule(StrEnum):
    """Whose definition of the transforms holds."""

    SPEC = "spec"
    PYLANCE = "pylance"


_EVALUATED = frozenset({Transform.IDENTITY, Transform.BUCKET, Transform.UNSHARDED})


def rule_of(spec: Spec, sources: Sources) -> Rule:
    """The rule that a table with this spec is routed by: pylance's where it takes every field."""
    by_pylance = all(_pylance_evaluates(field, sources) for field in spec.fields)
    return Rule.PYLANCE if by_pylance else Rule.SPEC


def _pylance_evaluates(field: SpecField, sources: Sources) -> bool:
    hashed = field.transform is Transform.BUCKET
    return field.transform in _EVALUATED and all(
        source is not None and (not hashed or is_hashed_by_pylance(source.type))
        for source in field_sources(field, sources)
    )
