"""`python -m memwal`: the command line."""

from memwal.cli import main

main()
