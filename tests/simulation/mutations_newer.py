"""Mutations of what is refused, or kept, of a newer Lance's columns and fields."""

from __future__ import annotations

from tests.simulation.mutation_list import Mutation, mutations

_TESTS = "tests/store/test_unknown_fields.py"
_COLUMNS = f"{_TESTS} -k column"
_INDEX = f"{_TESTS} -k index"
_MANIFEST = f"{_TESTS} -k manifest"

NEWER: tuple[Mutation, ...] = (
    *mutations(
        "memwal/rows/align.py",
        _COLUMNS,
        (
            "newer: a column that may be Lance's own is left out",
            "        if field_id not in ids and layout.is_reserved(column.name)",
            "        if False",
        ),
    ),
    *mutations(
        "memwal/store/tables/generations.py",
        _COLUMNS,
        (
            "newer: a column that a user dropped is taken for Lance's own",
            "            if change.field_id not in names and change.after is not None:",
            "            if change.field_id not in names:",
        ),
    ),
    *mutations(
        "memwal/format/codec.py",
        _TESTS,
        (
            "newer: unknown fields are not seen",
            "    if known.ByteSize() == message.ByteSize():",
            "    if True:",
        ),
        (
            "newer: unknown fields within messages are not named",
            "            yield from _walk_unknown(part)",
            "            yield from ()",
        ),
        (
            "newer: unknown fields of a shard's values get lost",
            "    if manifest.shard_field_entries != _parse_field_entries(message):",
            "    if True:",
        ),
    ),
    *mutations(
        "memwal/jobs/merge/plan.py",
        _INDEX,
        ("newer: a dry run tells of a merge that is refused", "    check_details(view)\n", ""),
    ),
    *mutations(
        "memwal/jobs/merge/apply/shard.py",
        _INDEX,
        (
            "newer: a merge drops fields that came while it ran",
            "        check_details(view)\n        run.check_progress(shard)",
            "        run.check_progress(shard)",
        ),
    ),
    *mutations(
        "memwal/jobs/index_catchup/apply.py",
        _INDEX,
        ("newer: an index's commit drops fields", "        check_details(look.view)\n", ""),
    ),
    *mutations(
        "memwal/jobs/compaction/apply.py",
        _INDEX,
        ("newer: a compaction drops fields", "            check_details(view)\n", ""),
    ),
    *mutations(
        "memwal/jobs/rescue/plan.py",
        _TESTS,
        (
            "newer: a rescue drops fields of the manifest",
            "    check_manifest(found.manifest)\n",
            "",
        ),
        (
            "newer: a rescue drops a column of the WAL",
            "        check_entry(path, entry.reserved, found.columns)",
            "        pass",
        ),
    ),
    *mutations(
        "memwal/store/shards/writers.py",
        _TESTS,
        (
            "newer: a writer drops fields of the manifest",
            "            check_manifest(manifest)\n",
            "",
        ),
        (
            "newer: a writer drops a column of the WAL",
            "                check_entry(path, reserved, columns)",
            "                pass",
        ),
    ),
    *mutations(
        "memwal/format/unknown.py",
        _COLUMNS,
        (
            "newer: a column of the table's own stops a rescue",
            "        if name not in columns:",
            "        if True:",
        ),
    ),
    *mutations(
        "memwal/store/records/lease.py",
        "tests/store/test_lease.py -m 'not integration' -k another_format",
        (
            "newer: a claim of another format is superseded",
            '        if document.pop("format", _FORMAT) != _FORMAT:',
            '        if document.pop("format", None) is False:',
        ),
    ),
)
