"""The merge itself: its effects in their order, through ports only."""
