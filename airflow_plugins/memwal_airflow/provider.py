"""What Airflow learns about this package (entry point `apache_airflow_provider`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from memwal_airflow import __version__


def get_provider_info() -> dict[str, Any]:
    """The provider's description: provider.yaml and the version."""
    found: dict[str, Any] = yaml.safe_load(
        Path(__file__).with_name("provider.yaml").read_text("utf-8")
    )
    return {**found, "versions": [__version__]}
