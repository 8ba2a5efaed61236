"""Carries out a merging read over Lance.

opening           opens what a plan names
opened_read       the interface of every opened read
newest_rows       the newest row of every key, read one of three ways
winners           which rows win among generations, from their keys
held_rows         small generations, held in memory
search            nearest neighbours
text_search       full-text search, with texts and text_statistics
policy_read       a table with a row-merge policy
wal_rows          rows that only a WAL has
tasks             a read that many tasks carry out together
sources           the tables that are read: the base, and each generation as base rows
generation_cache  what was read of generations, for the next read
keys              sets of keys
threads           concurrent work on many tables
faults            translates Lance's errors to ours
"""
