"""Prints the conformance table: what memwal's documents say, and the tests that check it.

    .venv/bin/python scripts/conformance.py [--area NAME]... [--run] [--documents FOLDER]

With --run the named tests are run, and the table shows their results; exit code 1 if one failed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from rich.console import Console  # noqa: E402
from rich.text import Text  # noqa: E402

from tests.conformance import pairs  # noqa: E402

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
_STYLE = {PASSED: "green", FAILED: "red", SKIPPED: "yellow"}


def main() -> int:
    """Print the table; return 1 for a problem with it, or if a test failed."""
    arguments = _parse_arguments()
    found = [p for p in pairs.load() if not arguments.area or p.area in arguments.area]
    console = Console(highlight=False, soft_wrap=True)
    wrong = [*pairs.problems(found), *_find_misquoted(found, arguments.documents)]
    for problem in wrong:
        console.print(Text(problem, style="red"))
    results = _run(found) if arguments.run else {}
    _print(found, results, console)
    failed = sum(result == FAILED for result in results.values())
    return 1 if wrong or failed else 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Sentences, and the tests behind them.")
    areas = sorted({pair.area for pair in pairs.load()})
    parser.add_argument("--area", action="append", choices=areas, help="only this; repeatable")
    parser.add_argument("--run", action="store_true", help="run the tests as well")
    parser.add_argument(
        "--documents", type=Path, help="compare the quotes with the documents here, as *.txt"
    )
    return parser.parse_args()


def _find_misquoted(found: Sequence[pairs.Pair], folder: Path | None) -> list[str]:
    """Say which sentences no document has below a section of that name."""
    texts = [] if folder is None else [_read_plain(path) for path in folder.glob("*.txt")]
    return [
        f"{pair.id}: no document's words"
        for pair in found
        if folder is not None
        and not any(
            pairs.flat(pair.sentence) in text
            and pairs.flat(pair.section).casefold() in text.casefold()
            for text in texts
        )
    ]


def _read_plain(path: Path) -> str:
    return pairs.flat(re.sub(r"^\s*//\s?", "", path.read_text(), flags=re.MULTILINE))


def _print(found: Sequence[pairs.Pair], results: Mapping[str, str], console: Console) -> None:
    area = ""
    for pair in found:
        if pair.area != area:
            area = pair.area
            console.print(Text(f"\n{area}: {pair.document.title}", style="bold"))
            console.print(Text(pair.document.address, style="dim"))
        console.print(
            Text(f"  {pair.id:<28} ", style="bold").append(
                f'{pair.section}: "{pairs.flat(pair.sentence)}"', style="not bold"
            )
        )
        for test in pair.tests:
            _print_test("    held by  ", test, results, console)
        if pair.reason:
            console.print(Text(f"    note     {pair.reason}", style="yellow"))
        if pair.pylance:
            console.print(Text(f"    pylance 14: {pair.pylance}", style="cyan"))
        for test in pair.evidence:
            _print_test("    seen in  ", test, results, console)
    _print_sum(found, results, console)


def _print_test(head: str, test: str, results: Mapping[str, str], console: Console) -> None:
    text = Text(f"{head}{test}")
    result = results.get(test)
    if result is not None:
        text.append(f"  {result}", style=_STYLE[result])
    console.print(text)


def _print_sum(found: Sequence[pairs.Pair], results: Mapping[str, str], console: Console) -> None:
    tests = {test for pair in found for test in pair.named}
    held = sum(bool(pair.tests) for pair in found)
    differs = sum(bool(pair.pylance) for pair in found)
    line = (
        f"\n{len(found)} sentences: {held} held by tests, {len(found) - held} with a stated reason "
        f"instead; {len(tests)} tests; pylance 14 differs in {differs}"
    )
    console.print(Text(line, style="bold"))
    if results:
        counts = {
            name: sum(result == name for result in results.values())
            for name in (PASSED, FAILED, SKIPPED)
        }
        console.print(Text(", ".join(f"{count} {name}" for name, count in counts.items())))


def _run(found: Sequence[pairs.Pair]) -> dict[str, str]:
    """Run the tests and return each result; a test that did not report counts as failed."""
    tests = sorted({test for pair in found for test in pair.named})
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # pytest's output goes to stderr, as stdout holds the table.
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", f"--junit-xml={report}", *tests],
            cwd=ROOT,
            stdout=sys.stderr,
            check=False,
        )
        seen = _read_results(report) if report.is_file() else {}
    return {test: seen.get(test, FAILED) for test in tests}


def _read_results(report: Path) -> dict[str, str]:
    """Read the worst result of each test function over its parameters."""
    order = (SKIPPED, PASSED, FAILED)
    results: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        file = case.get("classname", "").replace(".", "/") + ".py"
        test = f"{file}::{case.get('name', '').partition('[')[0]}"
        kinds = {child.tag for child in case}
        result = PASSED
        if kinds & {"failure", "error"}:
            result = FAILED
        elif "skipped" in kinds:
            result = SKIPPED
        results[test] = max(results.get(test, SKIPPED), result, key=order.index)
    return results


if __name__ == "__main__":
    sys.exit(main())
