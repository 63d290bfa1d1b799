"""General mechanisms: atomic files, records, prefetching, progress."""
