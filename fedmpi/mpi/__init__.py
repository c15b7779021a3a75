"""MPI: the only package that imports mpi4py."""
