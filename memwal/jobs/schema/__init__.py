"""A table's columns, and changes of them that rows on the way survive."""
