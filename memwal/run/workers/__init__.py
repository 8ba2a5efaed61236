"""Worker processes that stay warm, and what runs inside one.

They run units of any job, and know nothing of the jobs.
"""
