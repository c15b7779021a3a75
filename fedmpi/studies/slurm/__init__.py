"""Runs as Slurm jobs: options, templates, the queue, the state of submitted runs."""
