"""Many runs: they are started, submitted, compared, and put beside the numbers of the papers."""
