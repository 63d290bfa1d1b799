"""Noise in a graph: where it goes, how it is sampled, and its moments."""
