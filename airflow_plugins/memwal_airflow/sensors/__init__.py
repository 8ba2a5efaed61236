"""Sensors, which wait for a table.

They query the memwal command, and change nothing.
"""
