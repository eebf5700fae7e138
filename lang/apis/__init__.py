"""Models behind other people's APIs, as backends of programs.

Each API has a file that speaks to its package; what they share is `model.py` (the backend),
`messages.py` (what a state becomes), `supported.py` (what an API can do), `stops.py` and
`matching.py` (what is done here in its place), `asking.py` (`select`), `speculation.py` (many gens
of one call) and `faults.py`. No package of an API is imported before one of its models is made.
Nothing here knows programs.
"""
