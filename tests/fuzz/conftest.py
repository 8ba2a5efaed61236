from __future__ import annotations

import pytest

from tests.fuzz import attack


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many bad inputs each parser was given."""
    if attack.SECONDS and attack.tried:
        terminalreporter.section("bad inputs tried")
        for name, count in sorted(attack.tried.items()):
            terminalreporter.line(f"{name:36} {count:>10,}")
        terminalreporter.line(f"{'together':36} {sum(attack.tried.values()):>10,}")
