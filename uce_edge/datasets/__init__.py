"""Labelled images: where they come from, how they are split, and which of them a model has seen. No torch."""
