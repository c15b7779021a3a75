"""A run, or several, as one HTML page that works offline, and as figures for a paper."""
