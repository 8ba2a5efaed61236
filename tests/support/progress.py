"""What jobs tell people, in tests: nobody watches, and nothing may go unexpectedly wrong."""

from __future__ import annotations

from memwal.run.progress import Silent


class Quiet(Silent):
    """Shows nothing. A traceback fails the test."""

    def trace(self, text: str) -> None:
        raise AssertionError(text)
