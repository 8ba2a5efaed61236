"""The error tree, and the exit codes. Each branch says what to do next; leaves say what happened.

MemWalError              exit 1  unexpected; see what it says
├── Usage                exit 2  correct the request or the configuration
│   ├── NotATable                the address does not lead to a Lance table with a MemWAL
│   └── BadCredentials           the store refuses these credentials
├── StandDown            exit 4  somebody else got there first; run again later
│   ├── LostRace                 a commit lost its compare-and-swap too often
│   ├── LeaseHeld                another run holds the table's lease
│   ├── Fenced                   a newer writer took the shard over; this one must stop
│   └── Moved                    rows left the WAL while it was read; read again from a fresh view
├── Refused              exit 5  a guard says no; look before you override it
│   ├── DoesNotFit               a folded value is out of its column's range
│   ├── Incomplete               a generation that a read needs is gone
│   └── Closed                   the write coordinator was shut down
├── PartlyFailed         exit 6  look at what failed; the rest is done
├── Unsupported          exit 7  this build can't serve that version or feature
├── Corruption           exit 8  storage holds something that must not be acted on
│   └── CutOff                   a WAL entry is torn: only its first bytes are stored, or none
├── StoreUnavailable     exit 1  the store did not answer in time; run again
│   └── Unreachable              it gave no answer, or only faults, however often it was asked
├── OutcomeUnknown       exit 1  a commit may have landed and could not be looked up
├── WorkerDied           exit 1  the process at work died; look for damage, or give it more memory
├── FlushFailed          exit 1  a coordinator's flush failed: its cause's exit code, if it has one
├── AlreadyExists                put-if-absent found the name taken
└── Missing                      there is no such object

The message of a Refused, an Unsupported and a Corruption ends with a code (`memwal explain`).
AlreadyExists and Missing are answers of the object stores, not failures of a run; they never
leave `apply`. Exit code 3 is for a condition of `status --fail-if` that holds, 6 for several tables
of which some failed, 130 for a cancelled run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Self

from memwal.identity import DISTRIBUTION, find_stranger

# Every part of memwal imports this module, on Spark's executors and in Airflow too.
if _stranger := find_stranger():
    raise ImportError(_stranger)

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CONDITION = 3
EXIT_HELD = 4
EXIT_REFUSED = 5
EXIT_PARTIAL = 6
EXIT_UNSUPPORTED = 7
EXIT_CORRUPTION = 8
EXIT_CANCELLED = 130

LASTING_EXITS = frozenset({EXIT_USAGE, EXIT_REFUSED, EXIT_UNSUPPORTED, EXIT_CORRUPTION})
"""Exit codes that neither waiting nor another run mends; Airflow goes by them."""

JOBS_MODULES = frozenset(
    (
        *("boto3", "botocore", "google", "lance", "lance_namespace"),
        *("numpy", "obstore", "pyarrow", "tenacity"),
    )
)
"""Of the extra `jobs`, which Airflow's environment can go without."""

_CODE = re.compile(r" \((MW-[A-Z]\d\d)\)\Z")


class MemWalError(Exception):
    """Base of every error that this package raises on purpose.

    `exit_code` is the process exit code; `outcome` the word in a report. `report` is the table's
    report where `memwal.Table` raises, which has what was done before.
    """

    exit_code = EXIT_FAILED
    outcome = "failed"
    report: object = None

    @property
    def text(self) -> str:
        """The message without its code."""
        return str(self)

    def say(self, text: str) -> Self:
        """The same error in other words."""
        return type(self)(text)

    def at(self, where: str) -> Self:
        """The same error, with where it happened in front."""
        return self.say(f"{where}: {self.text}")


class _Coded(MemWalError):
    """An error whose message ends with a code, which `memwal explain` explains.

    A code stands for one situation for ever: it is never given to another one.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(code, text)

    @property
    def code(self) -> str:
        """`MW-H01` and the like; empty where the message was read back without one."""
        return str(self.args[0])

    @property
    def text(self) -> str:
        """The message without its code."""
        return str(self.args[1])

    def say(self, text: str) -> Self:
        """The same error in other words."""
        return type(self)(self.code, text)

    def __str__(self) -> str:
        ending = f" ({self.code})" if self.code else ""
        return self.text.removesuffix(ending) + ending


class Usage(MemWalError):
    """The request or the configuration is wrong."""

    exit_code = EXIT_USAGE


class NotATable(Usage):
    """The address does not lead to a Lance table that has a MemWAL."""


class BadCredentials(Usage):
    """The store refuses the credentials it was shown."""


class StandDown(MemWalError):
    """Someone else is at work on the same thing; nothing is wrong with the table."""

    exit_code = EXIT_HELD
    outcome = "held"


class LostRace(StandDown):
    """A commit lost its race more often than the limits allow."""

    outcome = "failed"


class LeaseHeld(StandDown):
    """Another run holds the table's lease."""


class Refused(_Coded):
    """A guard refuses the work; nothing was changed by the refused part."""

    exit_code = EXIT_REFUSED
    outcome = "refused"


class DoesNotFit(Refused):
    """A folded value is out of its column's range; later rows may bring it back into it."""


class PartlyFailed(MemWalError):
    """Some of the work is done and some is not; the report says which."""

    exit_code = EXIT_PARTIAL
    outcome = "partial"


class Unsupported(_Coded):
    """A library version, scheme or table feature outside what is supported."""

    exit_code = EXIT_UNSUPPORTED
    outcome = "refused"


class Corruption(_Coded):
    """Something in storage is torn, forged or inconsistent."""

    exit_code = EXIT_CORRUPTION


class StoreUnavailable(MemWalError):
    """The object store could not be reached, or kept failing until the deadline."""


class Unreachable(StoreUnavailable):
    """A request got no answer, or only faults, until it was given up."""


class OutcomeUnknown(MemWalError):
    """A commit may or may not have landed, and reading progress failed too."""


class WorkerDied(MemWalError):
    """The process that worked on something died; an engine's unit has been tried alone, too."""


class AlreadyExists(MemWalError):
    """A put-if-absent found the name taken: a lost race, not a fault."""


class Missing(MemWalError):
    """The object does not exist."""


def unexpected(error: BaseException) -> MemWalError:
    """An error that nobody expected, as one of ours."""
    missing = str(error.name) if isinstance(error, ModuleNotFoundError) else ""
    if missing.partition(".")[0] in JOBS_MODULES:
        return Unsupported(
            "MW-E04",
            f"the module {missing}, which jobs need, is not installed: "
            f"pip install '{DISTRIBUTION}[jobs]'",
        )
    return MemWalError(f"unexpected {type(error).__name__}: {error}")


def make_sendable(error: BaseException) -> Exception:
    """The error, if it can travel to another process, or one that tells of it."""
    import pickle  # most commands have no use for it

    try:
        if isinstance(error, Exception) and type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    except Exception:  # whatever an error's own class raises
        pass
    return unexpected(error)


def find_code(text: str) -> str:
    """The code at the end of a message; empty if it has none."""
    found = _CODE.search(text)
    return found[1] if found else ""


def error_of(exit_code: int, outcome: str, text: str) -> MemWalError:
    """The error that goes with an exit code and an outcome in a report."""
    held = LeaseHeld if outcome == LeaseHeld.outcome else LostRace
    kinds: Sequence[type[MemWalError]] = (
        Usage,
        held,
        Refused,
        PartlyFailed,
        Unsupported,
        Corruption,
    )
    kind = next((kind for kind in kinds if kind.exit_code == exit_code), MemWalError)
    if issubclass(kind, _Coded):
        return kind(find_code(text), _CODE.sub("", text))
    return kind(text)
