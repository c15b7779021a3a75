"""MPI: the only package that imports mpi4py."""

from fedmpi.lazy import exports

__getattr__ = exports(
    __name__,
    {"SerialComm": "serial", "Traffic": "serial", "Device": "placement", "place": "placement", "world": "serial"},
)
