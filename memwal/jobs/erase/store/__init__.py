"""The Lance and object side of an erasure: the keys, the search, the tombstones, and the rest."""
