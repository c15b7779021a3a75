"""Measures what the pruned nets of a Hermes run save: python jobs/measure_pruned.py --help."""

import sys

from fedmpi.studies.bench.pruned import main

if __name__ == "__main__":
    sys.exit(main())
