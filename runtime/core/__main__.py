"""`python -m boughs.runtime.core`: see `boughs.runtime.core.process`."""

import sys

from boughs.runtime.core.process import main

sys.exit(main())
