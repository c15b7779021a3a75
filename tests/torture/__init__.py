"""Forged archives; they go with the tests that read them."""
