"""How far an ingest is, and what of it is in the table already: so that each row goes in once.

Nothing here reads values for their meaning, or chooses shards.
"""
