"""The metrics of batches."""

import udf_server as udf

__all__ = ["BATCHES", "BATCH_ROWS"]

BATCHES = udf.counter(
    "models_batches", "Batches that were submitted, adopted from a lost server, abandoned, or that ended.", ["event"]
)
BATCH_ROWS = udf.counter(
    "models_batch_rows", "Rows of batches that were submitted, answered or failed; lines that are unusable.", ["event"]
)
