"""What is measured, and where it goes: Prometheus's text, a push by OTLP, or nowhere."""
