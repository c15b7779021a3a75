"""A pretend accelerator, and runs on it: what a GPU would refuse or wait for shows on a machine without one."""
