"""The engine core: scheduler, prefix cache, model, sampler. It owns tokens and KV, and sees no text."""
