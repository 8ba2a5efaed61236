"""Chooses what a merging read reads. Pure.

request  what is asked for, and whether it fits the table
sources  the base and the generations that are read, and cuts of them into tasks
ranking  ranks texts by one set of statistics over all tables
"""
