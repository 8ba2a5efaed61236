"""The formal models: the quick variants. `make model` checks all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model import check

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(check.missing() is not None, reason=str(check.missing())),
]

QUICK = [variant for variant in check.VARIANTS if variant.quick]


@pytest.mark.parametrize("variant", QUICK, ids=[f"{v.model}: {v.name}" for v in QUICK])
def test_it_holds_or_has_a_counterexample(variant: check.Variant) -> None:
    outcome = check.check(variant)
    assert outcome.is_as_expected(variant), outcome


def test_without_its_newest_sentinel_a_stalled_writer_is_acknowledged() -> None:
    trail = check.check(check.NEWEST_SENTINEL).trail
    deleted = next(i for i, line in enumerate(trail) if "deletes the sentinel" in line)
    lost = trail[-1]
    assert "is acknowledged" in lost
    writer, position = lost.split(":")[0], lost.split("position ")[1].split()[0]
    newer = [line for line in trail[:deleted] if "claimed epoch" in line]
    assert int(newer[-1].split()[1].rstrip(":")) > int(writer.split()[1])
    assert any(f"at position {position}" in line for line in trail[deleted:-1])


def test_where_no_epoch_is_raised_the_old_writer_takes_the_restored_table() -> None:
    trail = check.check(check.KEPT_EPOCH).trail
    done = next(i for i, line in enumerate(trail) if "restore: done" in line)
    assert "old: its manifest is the latest" in trail[-1]
    assert done < len(trail) - 1


def test_a_search_that_is_cut_short_proves_nothing() -> None:
    safe = next(v for v in QUICK if v.safe and v.model == "snapshot")
    whole = check.check(safe)
    assert whole.is_as_expected(safe)
    assert not replace(whole, complete=False).is_as_expected(safe)
    assert not whole.is_as_expected(replace(safe, safe=False))
