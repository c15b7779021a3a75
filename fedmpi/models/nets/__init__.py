"""The built-in nets, a family each, with their options."""
