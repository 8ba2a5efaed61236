"""Works off a long backlog in bounded steps."""
