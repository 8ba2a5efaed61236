"""Mutations that breach a sentence of the documents in tests/conformance, which a test there holds."""

from __future__ import annotations

from tests.simulation.mutation_list import Change, Mutation, mutations

_MANIFESTS = "memwal/store/shards/manifests.py"
_FAST = "-m 'not integration'"

_SNAPSHOTS = mutations(
    "memwal/jobs/snapshot/store.py",
    "tests/jobs/snapshot/test_snapshot.py -k 'stored_columns or column_for_each'",
    (
        "spec: a snapshot's shard id is bytes of any length",
        '    pa.field("shard_id", pa.binary(16)),',
        '    pa.field("shard_id", pa.binary()),',
    ),
    (
        "spec: a snapshot's generations are short numbers",
        'pa.field("generation", pa.uint64())',
        'pa.field("generation", pa.int32())',
    ),
    (
        "spec: a snapshot's shard spec id is a long number",
        'pa.field("shard_spec_id", pa.uint32())',
        'pa.field("shard_spec_id", pa.uint64())',
    ),
    (
        "spec: a snapshot has no values of shard fields",
        "            stored = [dict(m.shard_field_entries).get(name) for m in manifests]",
        "            stored = [None for m in manifests]",
    ),
    (
        "spec: a snapshot's shard fields are bytes",
        "        return parse_type(field.result_type, field.field_id)",
        "        return pa.binary()",
    ),
)

_EPOCHS = (
    Mutation(
        name="spec: an epoch may fall",
        changes=(
            Change(
                file=_MANIFESTS,
                before="        if current is not None and proposed.writer_epoch < current.writer_epoch:",
                after="        if False:",
            ),
            Change(
                file="memwal/invariants.py",
                before='    for name in ("writer_epoch", "current_generation"',
                after='    for name in ("current_generation"',
            ),
        ),
        tests=f"tests/store/test_manifests.py {_FAST} -k epochs_only_rise",
    ),
    *mutations(
        _MANIFESTS,
        f"tests/store/test_manifests.py {_FAST} -k epochs_only_rise",
        (
            "spec: a claim leaves the epoch as it is",
            "replace(current, writer_epoch=current.writer_epoch + 1)",
            "replace(current, writer_epoch=current.writer_epoch)",
        ),
    ),
    *mutations(
        "memwal/store/shards/writers.py",
        "tests/ingest/test_shard_writers.py -k 'one_entry_behind or claims_its_shard or same_time'",
        (
            "spec: ingest writes without a claim of its own",
            "        if after is None or epoch != before.writer_epoch + 1:",
            "        if after is None:",
        ),
    ),
)

_SPECS = (
    *mutations(
        "memwal/invariants.py",
        f"tests/store/test_manifests.py tests/test_invariants.py {_FAST} -k 'follows or spec_is'",
        (
            "spec: a shard may change its shard spec",
            "    if proposed.shard_spec_id != current.shard_spec_id:",
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/sharding/pruning.py",
        "tests/sharding/test_sharding_pruning.py -k specs_of_one_id",
        (
            "spec: of two shard specs with one id the first counts",
            '            filters[stored.spec_id] = f"there are two shard specs {stored.spec_id}"\n',
            "",
        ),
        (
            "spec: of two shard specs with one id the last counts",
            "        if stored.spec_id in filters:",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/sharding/spec.py",
        "tests/sharding/test_sharding_spec.py -k ids_are_positive",
        ("spec: a shard spec's id may be 0", "    if spec.spec_id < 1:", "    if False:"),
    ),
    *mutations(
        "memwal/ingest/routing.py",
        f"tests/ingest/test_routing.py {_FAST}",
        (
            "spec: rows go by the first of two shard specs",
            "    if len(specs) > 1:",
            "    if False:",
        ),
        (
            "spec: shards of one shard spec have one id",
            'f"{self.spec_id}{values}"',
            'f"{self.spec_id}"',
        ),
        (
            "spec: shards of two shard specs have one id",
            'f"{self.spec_id}{values}"',
            'f"{values}"',
        ),
        (
            "spec: a shard takes another value's id",
            "                if said.entries:\n                    raise Refused(",
            "                if False:\n                    raise Refused(",
        ),
    ),
)

_PLACES = (
    *mutations(
        "memwal/rows/fold.py",
        "tests/rows/test_fold.py -k any_order",
        (
            "spec: of rows of one generation the one that comes last wins",
            '        return table.take(pa.array(np.argsort(flat, kind="stable")))',
            "        return table",
        ),
    ),
    *mutations(
        "memwal/store/shards/snapshots.py",
        "tests/jobs/snapshot/test_snapshot.py -m 'not spark' "
        "-k '(external_file and local) or column_for_each'",
        (
            "spec: a snapshot's shard fields have names of their own",
            'FIELD_PREFIX = "region_field_"',
            'FIELD_PREFIX = "shard_field_"',
        ),
        (
            "spec: an external snapshot has a name of its own",
            '    return f"_indices/{index_uuid}/index.lance"',
            '    return f"_indices/{index_uuid}/snapshot.lance"',
        ),
    ),
    *mutations(
        _MANIFESTS,
        f"tests/store/test_manifests.py {_FAST} -k 'hinted_at or nothing_is_listed or lost_its_race'",
        (
            "spec: a new manifest is not hinted at",
            "                self._write_hint(shard_id, version)\n",
            "                pass\n",
        ),
        (
            "spec: the hint at the newest manifest is not used",
            "            known, hinted = None, self.hint(shard_id)",
            "            known, hinted = None, None",
        ),
        (
            "spec: a manifest overwrites one of its version",
            "        self._objects.put_if_absent(path, data)",
            "        self._objects.put(path, data)",
        ),
    ),
    *mutations(
        "memwal/store/shards/writers.py",
        f"tests/store/test_fencing.py {_FAST} -k leave_no_hole",
        (
            "spec: a sentinel leaves a hole below it",
            "        first = manifest.replay_after_wal_entry_position + 1",
            "        first = manifest.replay_after_wal_entry_position + 2",
        ),
    ),
    *mutations(
        "memwal/store/shards/writers.py",
        "tests/ingest/test_shard_writers.py -k in_the_wal_when",
        (
            "spec: ingest's puts return before they are durable",
            '_DURABLE = {"durable_write": True}',
            '_DURABLE = {"durable_write": False}',
        ),
    ),
)

_EXPRESSIONS = (
    *mutations(
        "memwal/sharding/expression.py",
        "tests/sharding/test_sharding_expression.py -k 'broken_rule or fails_on_null'",
        (
            "spec: an expression may hang on the type of a number",
            "                if not self.values(wider, 3).equals(expected):",
            "                if False:",
        ),
        (
            "spec: an expression may tell a removed column from NULL",
            "            if not gone.equals(self.values(typed, 4)):",
            "            if False:",
        ),
        (
            "spec: an expression may fail on NULL",
            "    trial.check_removal(batch)\n    trial.check_nulls()\n",
            "",
        ),
        (
            "spec: an expression may have another type than the spec says",
            "        if not _is_same(planned, self.result_type):",
            "        if False:",
        ),
    ),
    *mutations(
        "memwal/sharding/spec.py",
        "tests/sharding/test_sharding_spec.py -k 'source or understood'",
        (
            "spec: a shard field's sources are counted instead of looked up",
            "    return [sources.get(field_id) for field_id in field.source_ids]",
            "    return [list(sources.values())[field_id] for field_id in field.source_ids]",
        ),
        (
            "spec: a bucket may be said to have any type",
            "    if said not in (None, pa.int32()):",
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/sharding/evaluate.py",
        "tests/sharding/test_sharding_values.py -k 'abs_of_the_hash'",
        (
            "spec: NULL has a bucket",
            "    return pa.array(numbers.astype(np.int32), mask=hashed.nulls)",
            "    return pa.array(numbers.astype(np.int32))",
        ),
    ),
    *mutations(
        "memwal/sharding/pruning.py",
        "tests/sharding/test_sharding_pruning.py -k 'one_bucket or own_spec'",
        (
            "spec: no shard is pruned",
            "    if why is not None:\n        return judge(why, can_match=False)",
            "    if False:\n        return judge(why, can_match=False)",
        ),
    ),
)

SPEC: tuple[Mutation, ...] = (
    *_SNAPSHOTS,
    *_EPOCHS,
    *_SPECS,
    *_PLACES,
    *_EXPRESSIONS,
)
