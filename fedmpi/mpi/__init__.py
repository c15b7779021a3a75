"""MPI: the only package that imports mpi4py."""

from typing import TYPE_CHECKING

from fedmpi.lazy import exports

if TYPE_CHECKING:
    from fedmpi.mpi.placement import Device, place
    from fedmpi.mpi.serial import SerialComm, Traffic, world

__all__ = ["Device", "SerialComm", "Traffic", "place", "world"]

__getattr__ = exports(
    __name__,
    {"SerialComm": "serial", "Traffic": "serial", "Device": "placement", "place": "placement", "world": "serial"},
)
