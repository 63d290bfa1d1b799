"""What a pass costs: latency and memory against the number of passes, each measurement in a process of its own."""
