"""Export call stacks with their weights: as collapsed stacks, for speedscope, and as a pprof profile."""
