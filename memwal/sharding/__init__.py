"""Shard specs: which shard a row belongs to, and which shards a filter can leave out. Pure.

spec        what a spec says, checked
values      types by name; shard values <-> bytes in a shard manifest
murmur      Murmur3 over whole columns
encoding    the bytes of a value that are hashed: by the spec, and as pylance does it
rules       which of the two holds for a table
engine      SQL through DataFusion (the only importer of it)
expression  custom expressions and the spec's six rules for them
evaluate    rows -> shard values
predicate   a filter as a tree; SQL text -> such a tree
domain      what a filter says about each column
pruning     a filter and shards -> the shards that can match
"""
