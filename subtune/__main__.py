"""`python -m subtune` is `subtune`."""

import sys

from subtune.cli import main

if __name__ == "__main__":
    sys.exit(main())
