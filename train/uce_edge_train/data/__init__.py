"""Training images: pixel scaling and augmentation."""
