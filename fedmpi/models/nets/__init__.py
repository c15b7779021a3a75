"""The built-in nets, a family each; what a config can set of them is in `models.options`."""
