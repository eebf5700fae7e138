"""The engine core: scheduler, model, sampler. It owns tokens and KV, and sees no text."""
