"""Words that nobody may write, files that would hide the standard library, and light imports."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.architecture.files import ROOT, texts

# spark-submit, Airflow and Python itself put these folders on sys.path, where such a file would be
# found first. Airflow may also call a module of the plugins folder by its bare name.
ON_PATH = (
    "jobs", "airflow_plugins", "airflow_plugins/memwal_airflow", "dags", "scripts", "memwal",
)  # fmt: skip
HEAVY = """
import sys
import memwal
assert not [name for name in sys.modules if name.startswith("memwal.")]
from memwal.cli import main
for words in [["--help"], ["merge", "--help"], ["status", "--help"]]:
    try:
        main(words)
    except SystemExit as ended:
        assert not ended.code, ended.code
heavy = {"lance", "pyspark", "pyarrow", "boto3", "numpy", "google.protobuf"}
assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()
"""
# In pieces, so that this file is not found.
BANNED = {
    # Packages come from wherever the machine is set up to get them.
    "a registry": "index" + "-url|--find" + "-links|files[.]python" + "hosted|pypi[.]" + "org"
    "|http.*/simp" + "le",
    # `memwal` on the package index is another project's; ours are called lance-memwal.
    "a stranger": r"(pip|uv|poetry)3? (install|add)[^\n]*[ '\"]memwal\b(?![-_/.])",
    # A reader has this repository, and what is published.
    "what is elsewhere": "design" + " section|field" + " notes|peers" + "[.]md|design" + "[.]md",
}


@pytest.mark.parametrize("what", BANNED)
def test_nobody_names(what: str) -> None:
    pattern = re.compile(BANNED[what])
    assert [name for name, text in texts().items() if pattern.search(text)] == []


def test_a_stranger_is_told_apart() -> None:
    told = re.compile(BANNED["a stranger"])
    assert told.search("pip install -U 'mem" + "wal[spark]'")
    assert not told.search("pip install 'lance-memwal[spark]'")


def test_no_file_hides_the_standard_library() -> None:
    found = [file for folder in ON_PATH for file in (ROOT / folder).glob("*.py")]
    assert len(found) > 30
    assert [file.name for file in found if file.stem in sys.stdlib_module_names] == []


@pytest.mark.nightly
def test_help_imports_nothing_heavy_and_the_package_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HEAVY], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage") == 3
