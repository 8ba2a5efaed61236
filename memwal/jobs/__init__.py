"""One folder a job; inside it, one word a stage."""
