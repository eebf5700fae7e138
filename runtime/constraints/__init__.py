"""Constraints: from a grammar's source to the tokens that may come next. No requests, no logits."""
