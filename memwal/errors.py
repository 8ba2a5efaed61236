"""The error tree. Each branch says what to do next; leaves say what happened.

MemWalError
├── Usage                exit 2  mend the request or the configuration
│   ├── NotATable                the name does not lead to a Lance table with a MemWAL
│   └── BadCredentials           the store refuses these credentials
├── StandDown            exit 4  somebody else got there; run again later
│   ├── LostRace                 a commit lost its compare-and-swap too often
│   └── LeaseHeld                another run holds the table's lease
├── Refused              exit 5  a guard says no; look before you override
│   └── DoesNotFit               a folded value is out of its column's range
├── Unsupported          exit 7  a version or feature that this build cannot serve
├── Corruption           exit 8  storage holds something that must not be acted on
├── StoreUnavailable     exit 1  the store did not answer in time; run again
├── OutcomeUnknown       exit 1  a commit may have landed and could not be looked up
└── WorkerDied           exit 1  the process at work died; look for damage, or give it more memory

AlreadyExists and Missing are answers of the object stores, not failures of a run; they never
leave `apply`.
"""

from __future__ import annotations

from memwal.identity import find_stranger

# Every part of memwal imports this module, on Spark's executors and in Airflow too.
if _stranger := find_stranger():
    raise ImportError(_stranger)


class MemWalError(Exception):
    """Base of every error that this package raises on purpose.

    `exit_code` is the process exit code; `outcome` the word in a report.
    """

    exit_code = 1
    outcome = "failed"


class Usage(MemWalError):
    """The request or the configuration is wrong."""

    exit_code = 2


class NotATable(Usage):
    """The address does not lead to a Lance table that has a MemWAL."""


class BadCredentials(Usage):
    """The store refuses the credentials it was shown."""


class StandDown(MemWalError):
    """Someone else is at work on the same thing; nothing is wrong with the table."""

    exit_code = 4
    outcome = "held"


class LostRace(StandDown):
    """A commit lost its race more often than the limits allow."""

    outcome = "failed"


class LeaseHeld(StandDown):
    """Another run holds the table's lease."""


class Refused(MemWalError):
    """A guard refuses the work; nothing was changed by the refused part."""

    exit_code = 5
    outcome = "refused"


class DoesNotFit(Refused):
    """A value that rows fold to is out of its column's range; with later rows it may be in it."""


class Unsupported(MemWalError):
    """A library version, scheme or table feature outside what is supported."""

    exit_code = 7
    outcome = "refused"


class Corruption(MemWalError):
    """Something in storage is torn, forged or inconsistent."""

    exit_code = 8


class StoreUnavailable(MemWalError):
    """The object store could not be reached, or kept failing until the deadline."""


class OutcomeUnknown(MemWalError):
    """A commit may or may not have landed, and reading progress failed too."""


class WorkerDied(MemWalError):
    """The process that worked on something died in every attempt, the last one with it alone."""


class AlreadyExists(MemWalError):
    """A put-if-absent found the name taken: a lost race, not a fault."""


class Missing(MemWalError):
    """The object does not exist."""


def unexpected(error: BaseException) -> MemWalError:
    """An error that nobody expected, as one of ours."""
    return MemWalError(f"unexpected {type(error).__name__}: {error}")
