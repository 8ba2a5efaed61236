"""The merge itself: the order of its effects, through ports only."""
