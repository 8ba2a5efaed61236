"""What Airflow learns about this package (entry point `apache_airflow_provider`)."""

from __future__ import annotations

from typing import Any

from memwal_airflow import __version__

INTEGRATION = "Lance MemWAL"
_TEXT = {"type": ["string", "null"]}
_SECRET = {"type": ["string", "null"], "format": "password"}


def get_provider_info() -> dict[str, Any]:
    """The provider's description, in the shape of Airflow's provider schema."""
    return {
        "package-name": "airflow-provider-lance-memwal",
        "name": "MemWAL",
        "description": "Maintains the MemWAL write tier of Lance tables.",
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": INTEGRATION,
                "external-doc-url": "https://lance.org/format/table/mem_wal/",
                "logo": "/memwal/static/icon.svg",
                "tags": ["service"],
            }
        ],
        "operators": _modules("operators.jobs", "operators.plan"),
        "sensors": _modules("sensors.backlog"),
        "hooks": _modules("hooks.memwal"),
        "triggers": _modules("triggers.jobs", "sensors.backlog"),
        "asset-uris": _ASSET_URIS,
        "connection-types": [_CONNECTION_TYPE],
        "extra-links": ["memwal_airflow.operators.page_links.MemWalPageLink"],
        "config": {"memwal": {"description": "Where memwal's jobs run.", "options": _OPTIONS}},
    }


def _modules(*names: str) -> list[dict[str, Any]]:
    modules = [f"memwal_airflow.{name}" for name in names]
    return [{"integration-name": INTEGRATION, "python-modules": modules}]


# Tables use the schemes of their stores. Those of s3, gs and file belong to other providers.
_ASSET_URIS = [
    {"schemes": ["memwal"], "handler": "memwal_airflow.assets.events.sanitize_uri"},
    {
        "schemes": ["az", "abfss"],
        "handler": None,
        "to_openlineage_converter": "memwal_airflow.assets.lineage.convert_asset",
    },
]

_CONNECTION_TYPE = {
    "connection-type": "memwal",
    "hook-class-name": "memwal_airflow.hooks.memwal.MemWalHook",
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


def _option(
    description: str, *, default: str = "", kind: str = "string", example: str | None = None
) -> dict[str, Any]:
    return {
        "description": description,
        "version_added": None,
        "type": kind,
        "example": example,
        "default": default,
    }


_OPTIONS = {
    "command": _option(
        "The memwal executable in the environment that the jobs run in.",
        default="memwal",
        example="/opt/memwal/bin/memwal",
    ),
    "config_file": _option(
        "memwal.toml: tables, limits, and [airflow] for the DAGs.", example="/etc/memwal.toml"
    ),
    "jobs_directory": _option(
        "Folder or URI of the job scripts, as spark-submit finds them. Default: the script that "
        "memwal brings along, in the command's environment.",
        example="s3a://lake/memwal/jobs",
    ),
    "conn_id": _option(
        "The connection that the page takes credentials from.", default="memwal_default"
    ),
    "run_directory": _option(
        "Folder for what running jobs report. Workers and triggerers have to share it for "
        "deferrable operators. Default: a folder below the system's temporary one.",
        example="/shared/memwal-runs",
    ),
    "page_refresh_seconds": _option(
        "How old the page's data may get before a look at the page renews it.",
        default="30",
        kind="float",
    ),
    "page_timeout_seconds": _option(
        "How long the page waits for one table's answer, in the background.",
        default="60",
        kind="float",
    ),
}
