"""Makes a table or figure of a paper, with our numbers beside its own.

The options: python jobs/reproduce.py --help (`fedmpi.studies.reproduce`).
"""

import signal
import sys

from fedmpi.studies.reproduce import main

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, so that no run is left behind
    sys.exit(main())
