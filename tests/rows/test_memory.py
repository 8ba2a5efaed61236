"""What follows from how much a process may take, and how tasks share it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.rows.memory import UNLIMITED, Memory, needed_bytes
from memwal.run.units import TableUnit, share_memory, split_memory


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit(TableUnit):
    """Needs room for so much."""

    uri: str = "table"
    storage_options: dict[str, str] = field(default_factory=dict)
    held: int = 0

    @property
    def memory_bytes_needed(self) -> int:
        return needed_bytes(self.held)


@given(st.integers(1, 2**40), st.integers(1, 64))
def test_parts_are_never_more_than_the_whole(bytes_max: int, tasks: int) -> None:
    whole = Memory(bytes_max=bytes_max)
    part, process = whole.share(tasks), whole.split(tasks)
    assert part.spare_bytes * tasks <= whole.spare_bytes + tasks
    assert (process.bytes_max or 0) * tasks <= bytes_max
    for small, large in ((part, whole), (whole, UNLIMITED)):
        assert small.batch_bytes <= large.batch_bytes
        assert small.ahead_bytes <= large.ahead_bytes
        assert small.cache_bytes <= large.cache_bytes


def test_tasks_of_one_process_share_what_the_interpreter_leaves() -> None:
    limit = needed_bytes(100)
    units, tasks = share_memory([Unit(memory_bytes_max=limit, held=50) for _ in range(3)], 2)
    assert tasks == 2
    assert [unit.memory_bytes_max for unit in units] == [needed_bytes(50)] * 3
    assert split_memory(units[0], 2).memory_bytes_max == needed_bytes(50) // 2


@pytest.mark.parametrize(("held", "tasks"), [(50, 2), (51, 1), (100, 1), (101, 2)])
def test_fewer_go_side_by_side_where_one_needs_more_than_its_part(held: int, tasks: int) -> None:
    small, large = (Unit(memory_bytes_max=needed_bytes(100), held=held) for held in (1, held))
    assert share_memory([small, large], 8)[1] == tasks


def test_what_has_no_limit_is_left_as_it_is() -> None:
    assert UNLIMITED.holds(2**60)
    assert UNLIMITED.share(4) == UNLIMITED.split(4) == UNLIMITED
    units = [Unit(held=2**50), Unit(), "no unit of a table"]
    assert share_memory(units, 2) == (units, 2)
    assert share_memory([], 2) == ([], 1)
