"""Benchmarks."""

import os

os.environ.setdefault("LANCE_LOG", "error,lance=off")
