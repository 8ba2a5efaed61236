"""Finds and opens the files and tables that an ingest reads, and cuts them into the same chunks.

Of the table that the rows go to, nothing here knows more than its columns' types.
"""
