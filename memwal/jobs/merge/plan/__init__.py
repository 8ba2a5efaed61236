"""Which generations of a merge are committed together, and how. Pure."""
