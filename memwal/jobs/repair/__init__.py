"""Mends what `verify` finds, as far as something else that is stored proves how it was."""
