"""The structured-generation language: programs, states, backends. Knows no runtime and no torch."""
