"""How outcomes and exit codes of parts become those of a whole."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal import errors
from memwal.jobs.merge.report import MergeTableReport, ShardReport
from memwal.report import (
    DONE,
    FAILED,
    HELD,
    NOTHING_TO_DO,
    PARTIAL,
    REFUSED,
    JobReport,
    Part,
    sum_up,
    sum_up_tables,
)

DID = Part(outcome=DONE)
IDLE = Part(outcome=NOTHING_TO_DO)
HALF = Part(outcome=PARTIAL, exit_code=6)


def wrong(error: type[errors.MemWalError]) -> Part:
    return Part(outcome=error.outcome, exit_code=error.exit_code, error="why")


@pytest.mark.parametrize(
    ("parts", "outcome", "code"),
    [
        ([], NOTHING_TO_DO, 0),
        ([IDLE], NOTHING_TO_DO, 0),
        ([DID], DONE, 0),
        ([IDLE, DID], DONE, 0),
        ([HALF], PARTIAL, 6),
        ([HALF, DID], PARTIAL, 6),
        ([DID, wrong(errors.Corruption)], PARTIAL, 6),
        ([IDLE, wrong(errors.Corruption)], FAILED, 8),
        ([wrong(errors.Corruption), wrong(errors.Corruption)], FAILED, 8),
        ([wrong(errors.Corruption), wrong(errors.Refused)], FAILED, 6),
        ([wrong(errors.Refused), wrong(errors.Refused)], REFUSED, 5),
        ([wrong(errors.Refused), wrong(errors.Unsupported)], REFUSED, 6),
        ([wrong(errors.LeaseHeld)], HELD, 4),
        ([wrong(errors.LeaseHeld), wrong(errors.LostRace)], FAILED, 4),
    ],
)
def test_sums(parts: list[Part], outcome: str, code: int) -> None:
    assert sum_up(parts) == (outcome, code)
    assert sum_up(reversed(parts)) == (outcome, code)
    if outcome == NOTHING_TO_DO:  # a job without work may still be done
        assert sum_up(parts, otherwise=DONE) == (DONE, 0)


@pytest.mark.parametrize("error", [errors.StoreUnavailable, errors.LeaseHeld, errors.Corruption])
@pytest.mark.parametrize("beside", [[IDLE], [DID], [IDLE, DID]])
def test_a_table_that_failed_beside_others_is_partly_failed_whatever_these_had_to_do(
    error: type[errors.MemWalError], beside: list[Part]
) -> None:
    assert sum_up_tables([wrong(error), *beside]) == (PARTIAL, 6)
    assert sum_up_tables([*beside, wrong(error)]) == (PARTIAL, 6)
    assert sum_up_tables([wrong(error)] * 2) == sum_up([wrong(error)])
    assert sum_up_tables(beside, otherwise=DONE) == (DONE, 0)


ERRORS = [errors.Usage, errors.LeaseHeld, errors.Refused, errors.Unsupported, errors.Corruption]
parts = st.sampled_from([DID, IDLE, HALF, *map(wrong, ERRORS)])


@given(st.lists(parts, max_size=6))
def test_only_work_that_went_well_exits_with_0(found: list[Part]) -> None:
    outcome, code = sum_up(found)
    well = all(part.outcome in (DONE, NOTHING_TO_DO) for part in found)

    assert (code == 0) == well == (outcome in (DONE, NOTHING_TO_DO))
    if not well:
        some_done = any(part.outcome in (DONE, PARTIAL) for part in found)
        assert (outcome == PARTIAL) == some_done
        assert code == 6 or code in {part.exit_code for part in found}


@given(st.lists(st.lists(parts, min_size=1, max_size=4), min_size=1, max_size=4))
def test_sums_of_sums_never_hide_a_failure(tables: list[list[Part]]) -> None:
    summed = [sum_up(found) for found in tables]
    outcome, code = sum_up([Part(outcome=o, exit_code=c) for o, c in summed])

    assert (code == 0) == all(c == 0 for _, c in summed)
    assert (outcome == PARTIAL) == (
        any(o in (DONE, PARTIAL) for o, _ in summed) and any(c for _, c in summed)
    )


def test_the_document_has_the_contract_s_fields() -> None:
    shard = ShardReport(shard_id="s", from_generation=1, to_generation=3, outcome=DONE)
    table = MergeTableReport(
        table="t", outcome=DONE, version_before=1, version_after=2, shards=(shard,), exit_code=6
    )
    document = json.loads(
        json.dumps(JobReport(job="merge", outcome=DONE, tables=(table,)).to_json())
    )

    (told,) = document["tables"]
    (of_shard,) = told["shards"]
    for part, fields in (
        (document, "job outcome seconds tables"),
        (told, "table outcome version_before version_after error"),
        (of_shard, "shard_id outcome from_generation to_generation generations commits seconds"),
        (of_shard, "rows_inserted rows_updated rows_deleted bytes_read error"),
    ):
        assert part.keys() >= set(fields.split())
    assert "exit_code" not in str(document)
