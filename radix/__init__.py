"""The radix tree, the page pool and the prefix cache over both. Plain Python and NumPy, ids only."""
