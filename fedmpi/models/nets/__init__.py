"""The built-in nets: for each family its options (`NAME_options.py`, without torch) and the net (`NAME.py`)."""
