"""Metrics, and where they go: Prometheus's text format, a push by OTLP, or nowhere."""
