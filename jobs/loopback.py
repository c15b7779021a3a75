"""Runs a command where no other machine reaches it: python jobs/loopback.py --help."""

import sys

from fedmpi.studies.loopback import main

if __name__ == "__main__":
    sys.exit(main())
