"""Submits one run or a sweep to Slurm, and tells how submitted runs do.

The options: python jobs/submit.py --help (`fedmpi.studies.slurm.submit`).
"""

import sys

from fedmpi.studies.slurm.submit import main

if __name__ == "__main__":
    sys.exit(main())
