"""Window functions of FLIP-145 on DataFrames, batch and streaming: `from spark_client.windows import tumble`.

intervals  lengths of windows
columns    the columns a window function adds, and the watermark
panes      the arithmetic of windows that are cut from time; tumble, hop, cumulate on top of it
session    windows cut by gaps; rows: windows cut by counting
joining    window join; partners: semi join of streams; ranking: window top-N and deduplication
netting    what is left of a changelog's windows; updates: windows that are emitted only if rows came in their last step
emitting   when windows of a stream fire; watermarks: a watermark that moves on beside an idle source
"""

from spark_client.windows.cumulate import cumulate
from spark_client.windows.hop import hop
from spark_client.windows.joining import window_join
from spark_client.windows.ranking import window_deduplicate, window_top_n
from spark_client.windows.rows import tumble_rows
from spark_client.windows.session import session
from spark_client.windows.tumble import tumble
from spark_client.windows.watermarks import with_watermark

__all__ = [
    "cumulate",
    "hop",
    "session",
    "tumble",
    "tumble_rows",
    "window_deduplicate",
    "window_join",
    "window_top_n",
    "with_watermark",
]
