"""Carries out a merging read over Lance.

opening      opens what a plan names
opened       what every opened read can do
newest_rows  the newest row of every key, read one of three ways
verdict      who wins among generations, from their keys
held_rows    small generations, held in memory
search       nearest neighbours
policy       a table with a row-merge policy
tasks        a read that many tasks carry out together
sources      the tables that are read: the base, and each generation as base rows
keys         sets of keys
threads      work on many tables side by side
faults       what an error of Lance's means for the read
"""
