"""The task behind a run of memwal: its name in memwal, its addresses in Airflow. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote


def describe_task(instance: Any) -> dict[str, Any]:
    """Describe a try of a task, in the form that run records, leases and logs keep."""
    index = instance.map_index
    return {
        **{name: getattr(instance, name) for name in ("dag_id", "run_id", "task_id", "try_number")},
        "map_index": -1 if index is None else index,
    }


def name_run(instance: Any) -> str:
    """Build memwal's id for the run of a task: `DAG/RUN/TASK/TRY`, in the letters that it allows.

    The id is in the job's log, reports and run records, and in the table's lease.
    """
    task = describe_task(instance)
    mapped = "" if task["map_index"] < 0 else f":{task['map_index']}"
    parts = (task["dag_id"], task["run_id"], f"{task['task_id']}{mapped}", task["try_number"])
    name = re.sub(r"[^A-Za-z0-9_.~:+@/=-]", "-", "/".join(map(str, parts))).lstrip("_.~:+@/=-")
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return name if len(name) <= 200 else f"{name[:167]}-{digest}"


def build_task_paths(task: Mapping[str, Any], root: str) -> dict[str, str]:
    """Build the addresses of a task's DAG run and log, below Airflow's own path (`root`).

    Both are left out for ids that can't be part of an address: browsers resolve
    `.` and `..` as folders.
    """
    ids = [task["dag_id"], task["run_id"], task["task_id"]]
    if any(text in (".", "..") for text in ids):
        return {}
    dag, run, name = (quote(text, safe="") for text in ids)
    run_path = f"{root}/dags/{dag}/runs/{run}"
    mapped = f"/mapped/{task['map_index']}" if task["map_index"] >= 0 else ""
    log_path = f"{run_path}/tasks/{name}{mapped}?try_number={task['try_number']}"
    return {"run_path": run_path, "log_path": log_path}
