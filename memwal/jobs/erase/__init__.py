"""Takes rows out of a table for good, and proves what is left of them."""
