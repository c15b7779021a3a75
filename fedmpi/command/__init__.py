"""The commands beside the run itself, one file each."""
