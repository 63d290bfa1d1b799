"""Scoring many images on many machines, with Ray Data.

`inputs` cuts an input into blocks, `parquet_parts` writes one Parquet file per block, and `ray_job` runs it. A pass
depends on the image and its seed alone, so a block has the same rows whoever computes it, and whenever.
"""
