"""The entry points: spark-submit scripts, and the wiring they share with the command line."""
