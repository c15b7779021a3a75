"""Compares methods on one data set, with equal budgets, over several seeds.

The options: python jobs/compare.py --help (`fedmpi.studies.compare`).
"""

import signal
import sys

from fedmpi.studies.compare import main

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, so that no run is left behind
    sys.exit(main())
