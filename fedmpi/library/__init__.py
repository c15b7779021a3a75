"""fedmpi from Python: what `import fedmpi` offers to scripts and notebooks. The README of this folder has examples."""
