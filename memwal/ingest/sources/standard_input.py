"""Standard input as a source: spooled to a file first, and identified by its content.

So piped data is ingested exactly once, too: when the same bytes are piped again, the run resumes
where the run before stopped.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import NamedTemporaryFile
from typing import BinaryIO

from memwal.errors import Unsupported, Usage

STANDARD_INPUT = "-"
_BLOCK_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class SpooledInput:
    """The content of standard input, in a file that is deleted when the run ends."""

    path: str
    size_bytes: int
    digest: str


@contextmanager
def spool_input(
    sources: Sequence[str], engine: str, stream: BinaryIO | None = None
) -> Iterator[SpooledInput | None]:
    """Read standard input to its end, if it is among the sources. Raises Usage, Unsupported."""
    if STANDARD_INPUT not in sources:
        yield None
        return
    if engine == "spark":
        raise Unsupported("MW-I31", "standard input is read by this process only: --engine local")
    source = stream or sys.stdin.buffer
    if source.isatty():
        raise Usage("standard input (-) is the terminal: pipe a file into it")
    digest, size_bytes = hashlib.sha256(), 0
    with NamedTemporaryFile(prefix="memwal-input-") as spool:
        try:
            while data := source.read(_BLOCK_BYTES):
                digest.update(data)
                size_bytes += spool.write(data)
            spool.flush()
        except OSError as error:
            raise Usage(f"standard input could not be kept in {spool.name}: {error}") from None
        yield SpooledInput(
            path=spool.name, size_bytes=size_bytes, digest=f"sha256:{digest.hexdigest()}"
        )
