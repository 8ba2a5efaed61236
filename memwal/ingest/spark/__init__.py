"""Ingest on Spark: rows staged by tasks, and the writing half of the data source.

The only files of an ingest that know pyspark.
"""
