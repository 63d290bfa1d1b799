"""The training loop: steps, checkpoints, journal, process group."""
