"""What Airflow is told about this package (entry point `apache_airflow_provider`)."""

from __future__ import annotations

from typing import Any

from memwal_airflow import __version__

_TEXT = {"type": ["string", "null"]}
_SECRET = {"type": ["string", "null"], "format": "password"}


def get_provider_info() -> dict[str, Any]:
    """The provider's description, in the shape of Airflow's provider schema."""
    return {
        "package-name": "airflow-provider-lance-memwal",
        "name": "MemWAL",
        "description": "Maintains the MemWAL write tier of Lance tables.",
        "versions": [__version__],
        "connection-types": [_CONNECTION_TYPE],
        "extra-links": ["memwal_airflow.page_links.MemWalPageLink"],
        "config": {"memwal": {"description": "Where memwal's jobs run.", "options": _OPTIONS}},
    }


_CONNECTION_TYPE = {
    "connection-type": "memwal",
    "hook-class-name": "memwal_airflow.hook.MemWalHook",
    "hook-name": "MemWAL",
    "ui-field-behaviour": {
        "hidden-fields": ["port", "schema"],
        "relabeling": {
            "host": "Store endpoint",
            "login": "Access key id",
            "password": "Secret access key",
        },
        "placeholders": {
            "host": "https://s3.example.com (leave empty for AWS or local files)",
            "login": "leave empty to use the workers' own credentials",
            "storage_options": '{"aws_region": "eu-central-1"}',
            "secret_storage_options": '{"aws_session_token": "…"}',
        },
    },
    "conn-fields": {
        "storage_options": {
            "label": "Storage options (JSON)",
            "description": "As pylance takes them. Shown to whoever may read connections.",
            "schema": _TEXT,
        },
        "secret_storage_options": {
            "label": "Secret storage options (JSON)",
            "description": "The same, masked wherever Airflow shows connections and logs.",
            "schema": _SECRET,
        },
    },
}

_OPTIONS = {
    "command": {
        "description": "The memwal executable in the environment that the jobs run in.",
        "version_added": None,
        "type": "string",
        "example": "/opt/memwal/bin/memwal",
        "default": "memwal",
    },
    "config_file": {
        "description": "memwal.toml: tables, limits, and [airflow] for the DAGs.",
        "version_added": None,
        "type": "string",
        "example": "/etc/memwal.toml",
        "default": "",
    },
    "jobs_directory": {
        "description": "Folder or URI of the job scripts, as spark-submit finds them. Default: "
        "the script that memwal brings along, in the command's environment.",
        "version_added": None,
        "type": "string",
        "example": "s3a://lake/memwal/jobs",
        "default": "",
    },
    "conn_id": {
        "description": "The connection that the page takes credentials from.",
        "version_added": None,
        "type": "string",
        "example": None,
        "default": "memwal_default",
    },
    "run_directory": {
        "description": "Folder for what running jobs tell. Workers and triggerers have to share it "
        "for deferrable operators. Default: a folder below the system's temporary one.",
        "version_added": None,
        "type": "string",
        "example": "/shared/memwal-runs",
        "default": "",
    },
    "page_refresh_seconds": {
        "description": "How old the page's data may get before a look at the page renews it.",
        "version_added": None,
        "type": "float",
        "example": None,
        "default": "30",
    },
    "page_timeout_seconds": {
        "description": "How long the page waits for one table's answer, in the background.",
        "version_added": None,
        "type": "float",
        "example": None,
        "default": "60",
    },
}
