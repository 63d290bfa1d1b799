"""Checks before a file is published: parity, quality, sigma, rejection."""
