"""Noise in a graph: sites, sampling, moments."""
