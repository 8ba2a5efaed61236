"""One file a kind of garbage."""
