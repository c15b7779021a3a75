"""Submits one run or a sweep to Slurm, and says how far submitted runs are: python jobs/submit.py --help."""

import sys

from fedmpi.studies.slurm.submit import main

if __name__ == "__main__":
    sys.exit(main())
