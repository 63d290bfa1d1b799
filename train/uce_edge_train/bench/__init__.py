"""What `uce-edge bench --compare` measures with PyTorch."""
