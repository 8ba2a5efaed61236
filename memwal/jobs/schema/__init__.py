"""A table's columns, and changes of them while it is at rest."""
