"""The engine's front: text in and out, validation, stops, and the link to the core."""
