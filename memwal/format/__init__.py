"""Names and bytes of what is stored."""
