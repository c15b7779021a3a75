"""`python -m fedmpi.data`: the command itself is in `fedmpi/command/data.py`, above the packages that it uses."""

from __future__ import annotations

import sys

from fedmpi.command.data import main

if __name__ == "__main__":
    sys.exit(main())
