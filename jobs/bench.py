"""Measures what a round costs beside the SGD steps in it, and what a start does: python jobs/bench.py --help."""

import sys

from fedmpi.studies.bench import startup

if __name__ == "__main__":
    if sys.argv[1:2] == ["startup"]:
        sys.exit(startup.main())
    if sys.argv[1:2] == ["gpu"]:
        from fedmpi.studies.bench import gpu

        sys.exit(gpu.main())
    if sys.argv[1:2] == ["scaling"]:
        from fedmpi.studies.bench import scaling

        sys.exit(scaling.main())
    from fedmpi.studies.bench.overhead import main  # loads torch

    sys.exit(main())
