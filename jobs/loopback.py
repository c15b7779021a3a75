"""Runs a command where no other machine reaches it.

The options: python jobs/loopback.py --help (`fedmpi.studies.loopback`).
"""

import sys

from fedmpi.studies.loopback import main

if __name__ == "__main__":
    sys.exit(main())
