"""The ports of a merge over Lance."""
