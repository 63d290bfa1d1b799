"""Bulk scoring on many machines, with Ray Data.

`inputs` splits an input into blocks, `parquet_parts` writes one Parquet file per block, and `ray_job` runs the job. A
pass depends on its image and seed alone, so a block has the same rows on every machine.
"""
