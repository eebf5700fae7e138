"""`python -m boughs.runtime.constraints`: the process in which new grammars are tried."""

import sys

from .worker import main

if __name__ == "__main__":
    sys.exit(main())
