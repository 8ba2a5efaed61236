"""Shows stored documents decoded."""
