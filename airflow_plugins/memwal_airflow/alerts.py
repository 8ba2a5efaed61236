"""Callbacks for failures and late runs: functions that `[airflow]` names by import paths."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from typing import Any

from airflow.sdk.definitions.callback import AsyncCallback, SyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from memwal.config import AirflowDags
from memwal.errors import Usage
from memwal_airflow.settings import read_settings


def build_failure_callbacks(dags: AirflowDags) -> list[Callable[..., Any]]:
    """Import the functions that a task calls when it has failed for good. Raises Usage."""
    found = [_import_function("on_failure", path) for path in dags.on_failure]
    for path, function in zip(dags.on_failure, found, strict=True):
        if inspect.iscoroutinefunction(function):
            raise _explain("on_failure", path, "is async, and nothing would await it")
    return found


def build_deadlines(dags: AirflowDags) -> list[DeadlineAlert] | None:
    """Build the alerts for runs of a DAG that are not over in time. Raises Usage.

    A plain function runs where the executor runs tasks, an async one in the triggerer. Returns
    None if no deadline is configured.
    """
    if dags.deadline_seconds is None:
        return None
    alerts = []
    for path in dags.on_deadline:
        is_async = inspect.iscoroutinefunction(_import_function("on_deadline", path))
        alerts.append(
            DeadlineAlert(
                # Runs that an event or a person started have no logical date.
                reference=DeadlineReference.DAGRUN_QUEUED_AT,
                interval=timedelta(seconds=dags.deadline_seconds),
                callback=(AsyncCallback if is_async else SyncCallback)(path),
            )
        )
    return alerts


def _import_function(key: str, path: str) -> Callable[..., Any]:
    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # a module may raise whatever it likes
        raise _explain(key, path, f"can't be imported: {error}") from None
    if not callable(found):
        raise _explain(key, path, "can't be called")
    return found  # type: ignore[no-any-return]


def _explain(key: str, path: str, why: str) -> Usage:
    return Usage(f"{read_settings().config_file}: airflow.{key}: {path} {why}")
