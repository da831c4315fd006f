"""A loading script, which is never run."""
