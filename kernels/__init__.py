"""Attention over paged KV, and the few other kernels. Import its modules directly."""
