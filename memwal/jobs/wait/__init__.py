"""Waits until what is pending now is merged, indexed or collected."""
