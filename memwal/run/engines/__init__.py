"""Where units of work run: threads of this process, or Spark."""
