"""How many bytes of rows are held at once, by what the process may take."""

from __future__ import annotations

import sys
from dataclasses import dataclass

_MIB = 1024 * 1024

# What a merge takes besides its rows: the interpreter, Lance, its threads and what they read. Then
# how often rows are in memory, as they were read and as Lance joins and writes them; and what is
# known of each row besides: keys, addresses, the hash table. `tests/bench/cases/wide_rows.py` holds
# the sum.
_PROCESS_BYTES = 370 * _MIB
_TIMES_IN_MEMORY = 2
_BESIDES_A_ROW_BYTES = 100
# Of a key of two columns in a predicate, as Lance parses and plans it; of one column, a third.
_PREDICATE_KEY_BYTES = 7 * 1024
_PREDICATE_KEYS_MIN = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """What a process may take: `bytes_max`, or without it what is quickest."""

    bytes_max: int | None = None

    def _part(self, parts: int, least_mib: int, most_mib: int) -> int:
        most = most_mib * _MIB
        if self.bytes_max is None:
            return most
        return max(least_mib * _MIB, min(most, self.spare_bytes // parts))

    @property
    def spare_bytes(self) -> int:
        """What is left for rows."""
        return max(0, (self.bytes_max or 0) - _PROCESS_BYTES)

    @property
    def batch_bytes(self) -> int:
        """Of one batch of rows."""
        return self._part(32, 2, 8)

    @property
    def ahead_bytes(self) -> int:
        """What Lance may read ahead of a scan."""
        return self._part(8, 8, 64)

    @property
    def cache_bytes(self) -> int:
        """Of each of Lance's caches."""
        return self._part(8, 8, 64)

    @property
    def predicate_keys_max(self) -> int:
        """Keys that a commit's predicate may name."""
        if self.bytes_max is None:
            return sys.maxsize
        return max(_PREDICATE_KEYS_MIN, self.spare_bytes // 8 // _PREDICATE_KEY_BYTES)

    def fits(self, needed: int) -> bool:
        """Whether so much may be taken."""
        return self.bytes_max is None or needed <= self.bytes_max

    def holds(self, held: int) -> bool:
        """Whether a merge's commit may hold so much."""
        return self.fits(needed_bytes(held))

    def share(self, tasks: int) -> Memory:
        """One task's part, of several in one process: the interpreter is there once."""
        if self.bytes_max is None:
            return self
        return Memory(bytes_max=self.bytes_max - self.spare_bytes * (tasks - 1) // tasks)

    def split(self, processes: int) -> Memory:
        """One process's part, of several that have it together."""
        return self if self.bytes_max is None else Memory(bytes_max=self.bytes_max // processes)


UNLIMITED = Memory()


def held_bytes(in_memory_bytes: int | None, rows: int | None) -> int:
    """What rows take in a merge's commit. Nothing is foreseen for rows of unknown size."""
    return _TIMES_IN_MEMORY * (in_memory_bytes or 0) + _BESIDES_A_ROW_BYTES * (rows or 0)


def needed_bytes(held: int) -> int:
    """What a process takes whose commits hold so much."""
    return _PROCESS_BYTES + held
