"""Measures what a round costs beside the SGD steps in it: python jobs/bench.py --help."""

import sys

from fedmpi.studies.bench.overhead import main

if __name__ == "__main__":
    sys.exit(main())
