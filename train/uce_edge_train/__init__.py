"""Train and calibrate Bayesian image classifiers with Monte Carlo Gaussian dropout in PyTorch."""

from uce_edge_train.layers import deterministic, gaussianize, noise_from

__all__ = ["deterministic", "gaussianize", "noise_from"]
