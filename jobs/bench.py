"""Measures what fedmpi costs, each beside a yardstick of the same run: python jobs/bench.py --help."""

import sys

from fedmpi.studies.bench.benchmarks import main

if __name__ == "__main__":
    sys.exit(main())
