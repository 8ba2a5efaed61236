"""Which row of a key wins."""
