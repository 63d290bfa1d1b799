"""Datasets that have a name. Nothing heavy here: the command line reads it to show its help."""

from enum import StrEnum


class Known(StrEnum):
    """What `--data` takes besides folders and files."""

    DIGITS = "digits"
    """The handwritten digits of scikit-learn, 8x8, gray: nothing to download."""
    CIFAR10 = "cifar10"
    """Photos of ten kinds of things, 32x32."""
    CIFAR100 = "cifar100"
    """Photos of a hundred kinds of things, 32x32."""
    SVHN = "svhn"
    """House numbers, 32x32."""
    MNIST = "mnist"
    """Handwritten digits, 28x28, gray."""
    FASHION_MNIST = "fashion-mnist"
    """Clothes, 28x28, gray."""
