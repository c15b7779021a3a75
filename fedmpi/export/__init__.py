"""Trained nets for use without fedmpi: a tier's or a client's net of a saved round, in one file (`fedmpi export`)."""
