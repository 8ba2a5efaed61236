"""Runs a job over many tables."""
