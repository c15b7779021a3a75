"""Data sets, how they are divided among clients, and batches of them on a device."""
