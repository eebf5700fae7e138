"""Models: where they are found, how they are read, and what they compute.

This package knows no request, no scheduler and no text beyond the tokenizer's files.
"""
