"""Carries out a merging read over Lance.

opening          opens what a plan names
sources          what is read, opened: the base, and each generation as base rows; a cache of those
newest_rows      the newest row of every key, read one of two ways
winners          which rows win among generations, from their keys
search           nearest neighbours and full-text search
texts            full-text indexes; text_statistics is what ranks are computed from
policy_read      a table with a row-merge policy
wal_rows         rows that only a WAL has
tasks            a read that many tasks carry out together
threads          concurrent work on many tables
faults           translates Lance's errors to ours
"""
