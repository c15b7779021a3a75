"""Makes a table or figure of a paper, with our numbers beside its own: python jobs/reproduce.py --help."""

import sys

from fedmpi.studies.reproduce import main

if __name__ == "__main__":
    sys.exit(main())
