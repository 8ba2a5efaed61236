"""Sensors: they wait for a table.

They ask the memwal command, and change nothing.
"""
