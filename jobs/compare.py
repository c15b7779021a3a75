"""Compares methods on one data set, with equal budgets, over several seeds: python jobs/compare.py --help."""

import sys

from fedmpi.studies.compare import main

if __name__ == "__main__":
    sys.exit(main())
