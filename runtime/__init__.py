"""The runtime: models, scheduler, engine, server and command line."""
