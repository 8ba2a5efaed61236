"""Brings a table to rest, so that its write spec or its maintained indexes can be changed."""
