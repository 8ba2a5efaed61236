"""One module a subject; each has `TITLE` and `run(bench)`."""
