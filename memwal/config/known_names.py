"""The names that storage options and variables of ours may have: another is a slip of the pen.

pylance and object_store pass over an option that they do not know, and what it was to say is not
done: with a misspelt endpoint, requests go to the real AWS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from memwal.errors import Usage

AS_IT_IS = "raw:"
"""Stands before the name of an option that this version of memwal does not know."""

_HEADER = "headers."
_GENERAL = """
    allow_http allow_invalid_certificates client_max_retries client_retry_timeout connect_timeout
    default_content_type disable_tagging download_retry_count expires_at_millis
    http1_only http2_keep_alive_interval http2_keep_alive_timeout http2_keep_alive_while_idle
    http2_max_frame_size http2_only lance_aimd_additive_increment lance_aimd_burst_capacity
    lance_aimd_decrease_factor lance_aimd_initial_rate lance_aimd_max_backoff_ms
    lance_aimd_max_rate lance_aimd_max_retries lance_aimd_min_backoff_ms lance_aimd_min_rate
    pool_idle_timeout pool_max_idle_per_host proxy_ca_certificate proxy_excludes proxy_url
    randomize_addresses read_timeout refresh_offset_millis request_timeout
    requests_per_second_max root_certificate s3_credentials_refresh_offset_seconds skip_signature
    timeout use_opendal user_agent
"""
_S3 = """
    access_key_id allow_http bucket bucket_name checksum_algorithm conditional_put
    container_authorization_token_file container_credentials_full_uri
    container_credentials_relative_uri copy_if_not_exists default_region disable_bulk_delete
    disable_tagging endpoint endpoint_url endpoint_url_s3 endpoint_url_sts imdsv1_fallback
    metadata_endpoint provider_scheme region request_payer role_arn role_session_name s3_express
    secret_access_key server_side_encryption session_token skip_signature sse_bucket_key_enabled
    sse_customer_key_base64 sse_kms_key_id sts_endpoint token unsigned_payload
    virtual_hosted_style_request web_identity_token_file
"""
_GOOGLE = """
    allow_http application_credentials base_url bearer_token bucket bucket_name service_account
    service_account_key service_account_path skip_signature storage_token
"""
_AZURE = """
    access_key account_key account_name allow_http authority_host authority_id bearer_token
    client_id client_secret container_name credential_type disable_tagging encryption_key endpoint
    fabric_cluster_identifier fabric_session_token fabric_token_service_url fabric_workload_host
    federated_token_file identity_endpoint master_key msi_endpoint msi_resource_id object_id
    sas_key sas_token skip_signature tenant_id token use_azure_cli use_emulator use_fabric_endpoint
"""
STORES = {
    "s3": (("", "aws_"), _S3),
    "gs": (("", "google_"), _GOOGLE),
    "az": (("", "azure_", "azure_storage_"), _AZURE),
    "abfss": (("", "azure_", "azure_storage_"), _AZURE),
}
"""The schemes of stores of buckets, each with the prefixes and the names of its options."""
_OPTIONS = frozenset(
    prefix + name
    for prefixes, names in ((("",), _GENERAL), *STORES.values())
    for prefix in prefixes
    for name in names.split()
)
VARIABLES = {
    "MEMWAL_CONFIG": "The configuration file, where no --config is given",
    "MEMWAL_STORAGE_OPTIONS": "A JSON object of storage options, which may be secrets",
    "MEMWAL_DEBUG": "As --debug",
    "MEMWAL_RUN_ID": "The id of the run, for logs, leases and run records",
    "MEMWAL_AIRFLOW_TASK": "A JSON object that names the task of Airflow that runs it",
    "MEMWAL_MANIFEST_CACHE": "off: shard manifests are not remembered below ~/.cache/memwal",
}
"""Of the environment, besides those of the settings."""
_OURS = "MEMWAL_"


def check_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options as pylance takes them: without `raw:`. Raises Usage for one that is not known."""
    checked: dict[str, str] = {}
    for name, value in options.items():
        plain = name.removeprefix(AS_IT_IS)
        if plain in checked:
            raise Usage(f"the storage option {plain!r} is given twice")
        if plain == name and name.lower() not in _OPTIONS and not name.lower().startswith(_HEADER):
            near = get_close_matches(name.lower(), sorted(_OPTIONS), 1, 0.75)
            meant = f" (is {near[0]} meant?)" if near else ""
            raise Usage(
                f"unknown storage option {name!r}{meant}: it would be ignored. If pylance takes "
                f"it, {AS_IT_IS + name!r} passes it on as it is"
            )
        checked[plain] = value
    return checked


def check_variables(environment: Iterable[str], known: Iterable[str]) -> None:
    """Raise Usage for a variable that looks like one of ours, misspelt.

    Others that begin like ours are not: Kubernetes sets some for a service that is called memwal.
    """
    ours = {name.removeprefix(_OURS) for name in known}
    for name in environment:
        rest = name.removeprefix(_OURS)
        if rest == name or rest in ours:
            continue
        if near := get_close_matches(rest, sorted(ours), 1, 0.8):
            raise Usage(
                f"unknown variable {name} (is {_OURS}{near[0]} meant?): it would be ignored"
            )
