"""Mutations of what a run of an Airflow DAG may be asked for."""

from __future__ import annotations

from tests.simulation.mutation_list import mutations

AIRFLOW = (
    mutations(
        "airflow_plugins/memwal_airflow/hooks/request.py",
        "tests/provider/test_airflow_request.py",
        (
            "airflow: tables stand among the options",
            'return [*options, "--", *named, ',
            "return [*named, *options, ",
        ),
        (
            "airflow: a name may begin with a dash",
            'if name.startswith("-"):',
            "if False:",
        ),
        (
            "airflow: a name may be empty",
            "if not isinstance(name, str) or not name.strip():",
            "if not isinstance(name, str):",
        ),
        (
            "airflow: a name may hold control characters",
            "if one_line(name) != name:",
            "if False:",
        ),
        (
            "airflow: any text is a shard's id",
            "return str(UUID(text))",
            "return text",
        ),
        (
            "airflow: a command may name no table",
            '    if not named:\n        raise Usage("no table is named")\n',
            "",
        ),
        (
            "airflow: any address may be named",
            "if known is None and not config.airflow.any_address:",
            "if False:",
        ),
        (
            "airflow: a refused address is shown with its secrets",
            "return repr(mask_address(text)[:200])",
            "return repr(text[:200])",
        ),
        (
            "airflow: an unknown key of a run's conf passes",
            "        if key not in params:",
            "        if False:",
        ),
        (
            "airflow: a conf that Airflow ignores passes",
            "        if params[key] != value:",
            "        if False:",
        ),
    )
    + mutations(
        "airflow_plugins/memwal_airflow/hooks/redaction.py",
        "tests/provider/test_airflow_texts.py",
        (
            "airflow: what a report says is shown as it is",
            "line = one_line(shorten(hide_secrets(text, secrets), ERROR_CHARACTERS_MAX + 1))",
            "line = shorten(hide_secrets(text, secrets), ERROR_CHARACTERS_MAX + 1)",
        ),
        (
            "airflow: a text is cut before its secrets are hidden",
            "line = one_line(shorten(hide_secrets(text, secrets), ERROR_CHARACTERS_MAX + 1))",
            "line = one_line(hide_secrets(shorten(text, ERROR_CHARACTERS_MAX + 1), secrets))",
        ),
    )
    + mutations(
        "airflow_plugins/memwal_airflow/operators/outcomes.py",
        "tests/provider/test_airflow_texts.py",
        (
            "airflow: a verdict is told as it is",
            "return decision, clean_line(text, secrets)",
            "return decision, text",
        ),
        (
            "airflow: a summary is told as it is",
            "change_texts(found, lambda text: clean_line(text, secrets))",
            "found",
        ),
    )
    + mutations(
        "airflow_plugins/memwal_airflow/processes/submission.py",
        "tests/provider/test_airflow_texts.py",
        (
            "airflow: a job's log is shown as it is",
            "one_line(line.expandtabs(4)) for line",
            "line.expandtabs(4) for line",
        ),
    )
)
