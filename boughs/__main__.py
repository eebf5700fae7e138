"""`python -m boughs`: the same as the command `boughs`."""

import sys

from boughs.runtime.cli import main

sys.exit(main())
