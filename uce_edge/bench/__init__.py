"""Measure latency and memory against the number of passes.

Each measurement runs in its own process.
"""
