"""Export weighted call stacks in the formats of flamegraph.pl (collapsed stacks), speedscope and pprof."""
