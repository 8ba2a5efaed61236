"""Opens the stores that source files are in, by pyarrow, from the options that lead Lance there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime

import pyarrow as pa
from pyarrow import fs

from memwal.errors import Unsupported

_AZURE_KEYS = ("account_key", "sas_token", "client_id", "client_secret", "tenant_id")
_ALIASES = {"access_key": "account_key", "master_key": "account_key", "sas_key": "sas_token"}
_ALIASES |= {"endpoint_url": "endpoint"}
# A token given as an option has no end that is known; pyarrow wants one.
_NEVER = datetime(2100, 1, 1, tzinfo=UTC)


def open_system(scheme: str, options: Mapping[str, str], account: str = "") -> fs.FileSystem:
    """The store of a scheme; `account` is Azure's, where the address names it.

    What no option says is looked for where the cloud's own tools look. Raises Unsupported.
    """
    short = {_shorten(name): value for name, value in options.items()}
    endpoint = short.get("endpoint") or short.get("base_url") or ""
    plain = "http" if endpoint.startswith("http://") else "https"
    host = endpoint.partition("://")[2].partition("/")[0] or endpoint or None
    try:
        if scheme == "s3":
            return fs.S3FileSystem(
                access_key=short.get("access_key_id"),
                secret_key=short.get("secret_access_key"),
                session_token=short.get("session_token"),
                region=short.get("region") or short.get("default_region"),
                endpoint_override=endpoint.partition("://")[2] or endpoint or None,
                scheme=plain,
            )
        if scheme == "gs":
            if any(name.startswith(("service_account", "application_")) for name in short):
                raise Unsupported(
                    "MW-I32",
                    "gs:// sources are read with GOOGLE_APPLICATION_CREDENTIALS or the option "
                    "google_storage_token, not with a service account given as an option",
                )
            token = short.get("token") or os.environ.get("GOOGLE_STORAGE_TOKEN")
            return fs.GcsFileSystem(
                access_token=token,
                credential_token_expiration=_NEVER if token else None,
                endpoint_override=host,
                scheme=plain,
            )
        return fs.AzureFileSystem(
            account
            or short.get("account_name")
            or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", ""),
            blob_storage_authority=host,
            blob_storage_scheme=plain,
            dfs_storage_authority=host,
            dfs_storage_scheme=plain,
            **{name: short[name] for name in _AZURE_KEYS if name in short},
        )
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise Unsupported("MW-I33", f"{scheme}:// sources can't be read: {error}") from None


def _shorten(name: str) -> str:
    name = name.lower()
    for prefix in ("aws_", "azure_", "google_", "storage_"):
        name = name.removeprefix(prefix)
    return _ALIASES.get(name, name)
