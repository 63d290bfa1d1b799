"""Networks: architectures, pretrained weights, parameter groups."""
