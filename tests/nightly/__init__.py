"""Programs that try for hours what the tests try once: `run.sh` runs them all."""
