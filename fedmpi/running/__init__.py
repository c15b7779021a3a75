"""How a run begins, continues and ends: resumes, branches, the check of nets before round 1, signals, last words."""
