"""Makes a table again out of a backup."""
