"""Shows how tables stand, live."""
