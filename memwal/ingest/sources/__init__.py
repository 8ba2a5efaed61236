"""Files and tables that an ingest reads: found, opened, and cut into chunks the same way each time.

Nothing here knows the table that the rows go to, but for the types that its columns want.
"""
