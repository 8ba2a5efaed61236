"""An example of what `[airflow] on_failure` may name.

Copy it to where Airflow's processes import from, for example as `lake_alerts.py`, and change the
recipients. It needs the provider `smtp` once it is called.
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
