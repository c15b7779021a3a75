"""Whether this machine, container or allocation is ready for a run: `python -m fedmpi.doctor`."""
