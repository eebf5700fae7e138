"""Boughs: a structured-generation language with a runtime of its own."""
