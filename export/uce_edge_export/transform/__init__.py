"""Transformations of graphs and of finished files."""
