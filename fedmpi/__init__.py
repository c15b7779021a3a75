"""fedmpi: federated learning with clients of unequal capacity, simulated as one MPI job."""

__version__ = "0.1.0"
