"""Shows what the audit trail of a table says, and whether it is whole."""
