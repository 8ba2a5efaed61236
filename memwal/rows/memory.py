"""Derives from a process's memory limit how many bytes of rows may be held at once."""

from __future__ import annotations

import sys
from dataclasses import dataclass

_MIB = 1024 * 1024

# First, what a merge takes besides its rows: the interpreter, Lance, its threads and what they
# read. Then how many copies of the rows are in memory, as they were read and as Lance joins and
# writes them. Then the overhead of each row: keys, addresses, the hash table.
# `bench/cases/wide_rows.py` checks the sum.
_PROCESS_BYTES = 370 * _MIB
_TIMES_IN_MEMORY = 2
_BESIDES_A_ROW_BYTES = 100
# Of a key of two columns in a predicate, as Lance parses and plans it; of one column, a third.
_PREDICATE_KEY_BYTES = 7 * 1024
_PREDICATE_KEYS_MIN = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """How much memory a process may take; without `bytes_max` buffers have their fastest sizes."""

    bytes_max: int | None = None

    def _part(self, parts: int, least_mib: int, most_mib: int) -> int:
        most = most_mib * _MIB
        if self.bytes_max is None:
            return most
        return max(least_mib * _MIB, min(most, self.spare_bytes // parts))

    @property
    def spare_bytes(self) -> int:
        """How many bytes of the limit are left for rows; 0 without a limit."""
        return max(0, (self.bytes_max or 0) - _PROCESS_BYTES)

    @property
    def batch_bytes(self) -> int:
        """The size of one batch of rows."""
        return self._part(32, 2, 8)

    @property
    def ahead_bytes(self) -> int:
        """How many bytes a scan of Lance's may read ahead."""
        return self._part(8, 8, 64)

    @property
    def cache_bytes(self) -> int:
        """The size of each of Lance's caches."""
        return self._part(8, 8, 64)

    @property
    def predicate_keys_max(self) -> int:
        """How many keys a commit's predicate may name."""
        if self.bytes_max is None:
            return sys.maxsize
        return max(_PREDICATE_KEYS_MIN, self.spare_bytes // 8 // _PREDICATE_KEY_BYTES)

    def fits(self, needed: int) -> bool:
        """Whether the process may take `needed` bytes in all."""
        return self.bytes_max is None or needed <= self.bytes_max

    def holds(self, held: int) -> bool:
        """Whether a merge's commit may hold `held` bytes of rows."""
        return self.fits(needed_bytes(held))

    def share(self, tasks: int) -> Memory:
        """The limit for one of several tasks in a process, whose fixed cost is counted once."""
        if self.bytes_max is None:
            return self
        return Memory(bytes_max=self.bytes_max - self.spare_bytes * (tasks - 1) // tasks)

    def split(self, processes: int) -> Memory:
        """The limit for one of several processes that share this one equally."""
        return self if self.bytes_max is None else Memory(bytes_max=self.bytes_max // processes)


UNLIMITED = Memory()


def held_bytes(in_memory_bytes: int | None, rows: int | None) -> int:
    """How many bytes rows take in a merge's commit; unknown sizes and row counts count as 0."""
    return _TIMES_IN_MEMORY * (in_memory_bytes or 0) + _BESIDES_A_ROW_BYTES * (rows or 0)


def needed_bytes(held: int) -> int:
    """How many bytes a process takes in all whose commits hold `held` bytes of rows."""
    return _PROCESS_BYTES + held
