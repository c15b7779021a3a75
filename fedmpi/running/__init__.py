"""How a run begins, continues and ends: resumes, the check of nets before round 1, signals, last words."""
