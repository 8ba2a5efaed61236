"""Where tables are, as Airflow's assets and OpenLineage name places: without credentials."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from memwal.config import Config, is_address, mask_address


def find_address(table: str, config: Config) -> str | None:
    """The table's address as an asset's URI, without credentials.

    None for a name that the configuration lacks, and for a table of a namespace, which may put it
    elsewhere one day.
    """
    section = config.tables.get(table)
    address = section.uri if section else table
    if section is None and not is_address(address):
        return None
    if address.partition(":")[0] in config.namespaces and "/" not in address:
        return None
    return tidy_address(address)


def tidy_address(address: str) -> str:
    """An address as an asset's URI: without credentials, and with a scheme."""
    if "://" not in address:
        return Path(address).absolute().as_uri()
    return mask_address(address).replace("***@", "", 1).removesuffix("?***").rstrip("/")


def split_address(address: str) -> tuple[str, str]:
    """OpenLineage's namespace and name of what is at an address."""
    parts = urlsplit(tidy_address(address))
    if parts.scheme == "file":
        return "file", unquote(parts.path)
    return f"{parts.scheme}://{parts.netloc}", parts.path.lstrip("/") or "/"
