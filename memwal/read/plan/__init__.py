"""Chooses what a merging read reads. Pure.

request  what is asked for, and whether it fits the table
sources  the base and the generations that are read
tasks    the same, cut into tasks
indexes  which index answers what
"""
