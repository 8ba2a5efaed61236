"""Ingest on Spark: rows staged by tasks, and the writing half of the data source.

Only these files of the ingest import pyspark.
"""
