"""How far an ingest is, and what is written already, so that each row is ingested once.

Nothing here interprets values or chooses shards.
"""
