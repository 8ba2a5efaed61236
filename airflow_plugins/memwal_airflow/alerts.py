"""Callbacks for failures: functions that `[airflow]` names by import paths."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

from memwal.config import AirflowDags
from memwal.errors import Usage
from memwal_airflow.settings import read_settings


def build_failure_callbacks(dags: AirflowDags) -> list[Callable[..., Any]]:
    """Import the functions that a task calls when it has failed for good. Raises Usage."""
    return [_import_function(path) for path in dags.on_failure]


def _import_function(path: str) -> Callable[..., Any]:
    try:
        found = resolve_name(path)
    except Exception as error:  # a module may raise whatever it likes
        raise _explain(path, f"can't be imported: {error}") from None
    if inspect.iscoroutinefunction(found):
        raise _explain(path, "is async, and nothing would await it")
    if not callable(found):
        raise _explain(path, "can't be called")
    return found  # type: ignore[no-any-return]


def _explain(path: str, why: str) -> Usage:
    return Usage(f"{read_settings().config_file}: airflow.on_failure: {path} {why}")
