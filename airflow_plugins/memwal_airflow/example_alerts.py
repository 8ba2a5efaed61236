"""An example of what `[airflow] on_failure` and `on_deadline` may name.

Copy it to where Airflow's processes import from, for example as `lake_alerts.py`, and change the
recipients. It needs the providers `smtp` and `slack`, each only once its function is called.
"""

from __future__ import annotations

from typing import Any


def mail_failure(context: Any) -> None:
    """Send a mail about a task that failed for good, over the connection `smtp_default`."""
    from airflow.providers.smtp.notifications.smtp import SmtpNotifier

    notifier = SmtpNotifier(
        to="lake@example.com",
        from_email="airflow@example.com",
        subject="{{ ti.dag_id }}: {{ ti.task_id }} failed on {{ task.tables or 'its tables' }}",
        html_content="<p>{{ exception | e }}</p><p><a href='{{ ti.log_url }}'>its log</a></p>",
    )
    notifier(context)


def chat_late(context: Any) -> None:
    """Send a message about a run that is late, over the connection `slackwebhook`."""
    from airflow.providers.slack.notifications.slack_webhook import (  # type: ignore[import-not-found]
        SlackWebhookNotifier,
    )

    run = context["dag_run"]
    text = f"{run['dag_id']}: {run['dag_run_id']} is late, and {run['state']}"
    SlackWebhookNotifier(slack_webhook_conn_id="slackwebhook", text=text)(context)
