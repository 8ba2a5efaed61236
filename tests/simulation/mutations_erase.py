"""Mutations of what says that nothing is left of erased rows."""

from __future__ import annotations

from tests.simulation.mutation_list import mutations

_JUDGING = "tests/jobs/erase/test_judging.py"
_TABLES = "tests/jobs/erase/test_erase.py"

ERASE = (
    *mutations(
        "memwal/jobs/erase/plan.py",
        _JUDGING,
        (
            "erase: what can't be read counts as absent",
            "        return State.UNKNOWN, seen.how, None",
            "        return State.ABSENT, seen.how, None",
        ),
        (
            "erase: an index from before counts as clean",
            "    if clean is not None and seen.newest >= clean:",
            "    if clean is not None:",
        ),
        (
            "erase: a file from before counts as a new one",
            "        return clean is not None and seen.oldest >= clean",
            "        return clean is not None",
        ),
        (
            "erase: an index that could not be built anew counts as clean",
            "    if name is not None and name in erasure.not_rebuilt:",
            "    if False:",
        ),
        (
            "erase: a WAL entry below the tombstones counts as a new one",
            "seen.number > mark.position",
            "True",
        ),
        (
            "erase: a generation below the tombstones counts as a new one",
            "seen.number > mark.generation",
            "True",
        ),
        (
            "erase: what is unknown does not keep it open",
            "        f.state not in (State.HELD, State.UNKNOWN) or f.kind is Kind.ERASURE",
            "        f.state is not State.HELD or f.kind is Kind.ERASURE",
        ),
    ),
    *mutations(
        "memwal/jobs/erase/plan.py",
        f"{_TABLES} -k tag",
        (
            "erase: a tag does not stop it",
            "    if not pins or through_tags:",
            "    if True:",
        ),
    ),
    *mutations(
        "memwal/jobs/erase/apply.py",
        _JUDGING,
        (
            "erase: clean before the tombstones are merged",
            "        self._check_merged(record)",
            "        pass",
        ),
        (
            "erase: clean while a file hides a row",
            "            if not self.search.hidden_rows(self.read_view().version):",
            "            if True:",
        ),
    ),
    *mutations(
        "memwal/jobs/erase/apply.py",
        f"{_TABLES} -k 'no_byte or waits or text_index or proof'",
        (
            "erase: the keys stay when it is done",
            "            self.erasures.forget_keys(record.erasure_id)",
            "            pass",
        ),
        (
            "erase: indexes stay as they are",
            "        self._rebuild_all(erased)",
            "        pass",
        ),
    ),
    *mutations(
        "memwal/jobs/erase/store/search.py",
        _JUDGING,
        (
            "erase: a detached version counts as the newest",
            "            number = 0 if detached else version.version",
            "            number = version.version",
        ),
    ),
    *mutations(
        "memwal/jobs/erase/store/search.py",
        f"{_TABLES} -k 'proof_names'",
        (
            "erase: only a generation's rows hold keys",
            "    if seen.kind is Kind.GENERATION and seen.rows == 0 and seen.group in groups:",
            "    if False:",
        ),
    ),
    *mutations(
        "memwal/jobs/erase/store/keys.py",
        "tests/jobs/erase/test_erase_kinds.py -k otherwise",
        (
            "erase: a time that is written otherwise is overlooked",
            "for found in _TIME.findall(text)",
            "for found in ()",
        ),
    ),
    *mutations(
        "memwal/jobs/erase/store/tombstones.py",
        _JUDGING,
        (
            "erase: a shard without a manifest is claimed",
            "if rows and shard in there}",
            "if rows}",
        ),
        (
            "erase: a shard without a manifest counts as a new one",
            "            for shard in {*positions, *generations}",
            "            for shard in {s.shard_id for s in view.shards}",
        ),
    ),
    *mutations(
        "memwal/jobs/erase/store/tombstones.py",
        f"{_TABLES} -k 'highest or no_byte or so_it_does or never_merged'",
        (
            "erase: a tombstone stays as the highest WAL entry",
            "            if decoy is not None:",
            "            if False:",
        ),
        (
            "erase: a shard's highest WAL entry is left",
            "        for shard in self._topped(view, look):",
            "        for shard in ():",
        ),
        (
            "erase: pending rows get no tombstones",
            "            if unflushed or pending:",
            "            if False:",
        ),
    ),
)
