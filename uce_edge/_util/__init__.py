"""Mechanisms without a subject: atomic files, records, lazy exports, prefetching, progress."""
