"""Conducts a study that a file asks for: python jobs/study.py --help."""

import sys

from fedmpi.results.grid import main

if __name__ == "__main__":
    sys.exit(main())
