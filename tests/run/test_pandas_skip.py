"""A command starts without pandas, and whoever needs it has it all the same."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pandas")

_SCRIPT = """
import sys
from memwal.run.process import pandas_skip

pandas_skip.start()
import lance
import pyarrow as pa

assert "pandas" not in sys.modules
frame = pa.table({"a": [1, None]}).to_pandas()
import pandas as pd

assert isinstance(frame, pd.DataFrame) and frame.a.isna().tolist() == [False, True]
assert pa.array(pd.Series([1.0, float("nan")])).null_count == 1
print("done")
"""


@pytest.mark.nightly
def test_pandas_is_imported_when_a_frame_is_made_and_not_before() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr
