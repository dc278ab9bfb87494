"""What tracekit needs from the operating system: files, memory, threads, processes and signals."""
