"""Export weighted call stacks as collapsed stacks (for flamegraph.pl), speedscope JSON or pprof profiles."""
