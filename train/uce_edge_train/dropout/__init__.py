"""Dropout layers, their noise, and Monte Carlo passes in PyTorch."""
