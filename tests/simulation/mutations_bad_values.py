"""Mutations of what becomes of values that can't be written, and of mended files."""

from __future__ import annotations

from tests.simulation.mutation_list import Mutation, mutations

BAD_VALUES: tuple[Mutation, ...] = (
    *mutations(
        "memwal/ingest/progress/identity.py",
        "tests/ingest/test_ingest_bad_values.py -k 'may_not_be_mended or got_longer'",
        (
            "ingest: what is written of a mended file is not compared",
            "        if found != wanted:",
            "        if False:",
        ),
        (
            "ingest: files that were read to their end are not compared behind it",
            "                if place == progress.split and found.rows >= wanted.rows:",
            "                if found.rows >= wanted.rows:",
        ),
    ),
    *mutations(
        "memwal/ingest/progress/resume.py",
        "tests/ingest/test_ingest_bad_values.py -k may_not_be_mended",
        (
            "ingest: of what the WAL has of a mended file only keys are compared",
            "call, None if self._owner.mended else self._owner.key)",
            "call, self._owner.key)",
        ),
    ),
    *mutations(
        "memwal/ingest/track.py",
        "tests/ingest/test_ingest_bad_values.py -k aside_each_once",
        (
            "ingest: what is set aside is counted, and not kept",
            "            path = self.records.add_rejects(self.name, self._stored.number + 1, rejects)",
            '            path = self.records.add_rejects("none", 0, ())',
        ),
    ),
    *mutations(
        "memwal/ingest/values/numbered_chunks.py",
        "tests/ingest/test_ingest_bad_values.py -k 'wherever_reading_begins or end_of_a_file'",
        (
            "ingest: lines behind a full last chunk that are no rows are forgotten",
            "    if waiting:\n",
            "    if False:\n",
        ),
        (
            "ingest: lines behind a chunk's end are told of with it, and lost by who has read it",
            "_count_before(number + len(chunk) - 1, waiting)",
            "_count_before(number + len(chunk), waiting)",
        ),
    ),
    *mutations(
        "memwal/ingest/track.py",
        "tests/ingest/test_ingest_bad_values.py -k end_of_a_file",
        (
            "ingest: lines at a file's end are set aside by every run that goes on behind it",
            '                "split": place if len(chunk) else place + 1,',
            '                "split": place,',
        ),
    ),
    *mutations(
        "memwal/ingest/values/writable_rows.py",
        "tests/ingest/test_ingest_bad_values.py "
        "-k 'aside_each_once or can_not_be_one or next_run or two_runs'",
        (
            "ingest: the file of bad rows loses those of others",
            "        after = [row for row in before if not whose.items() <= row.items()] + rows",
            "        after = rows",
        ),
        (
            "ingest: two runs write one file of bad rows at once",
            "fcntl.flock(folder, fcntl.LOCK_EX)",
            "fcntl.flock(folder, fcntl.LOCK_UN)",
        ),
        (
            "ingest: bad rows are set aside among the sources",
            "        self._check_apart(sources)\n",
            "",
        ),
        (
            "ingest: a file of something else is taken for bad rows",
            "        if not all(isinstance(row, dict)",
            "        if False and not all(isinstance(row, dict)",
        ),
    ),
    *mutations(
        "memwal/ingest/values/shape.py",
        "tests/ingest/test_ingest_bad_values.py -k text_that_is_none",
        (
            "ingest: texts that are none are written",
            "            found.validate(full=True)",
            "            found.validate()",
        ),
    ),
)
