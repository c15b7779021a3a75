"""What the commands share (`manners`), and what `fedmpi.main` does beside running: one file each."""
