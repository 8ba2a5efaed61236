"""Shard specs: which shard a row belongs to, and which shards hold no row of a key.

spec        what a spec says, checked; shard values <-> bytes in a shard manifest
evaluate    rows -> shard values, as pylance computes them; keys -> shards that don't have them

Of the spec's transforms these are the ones that pylance has. A spec with another one is read, and
rows are not routed by it.
"""
