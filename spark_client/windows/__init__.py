"""Window functions of FLIP-145 on DataFrames, batch and streaming: `from spark_client.windows import tumble`.

intervals     lengths of windows
columns       the columns that a window function adds, and the watermark
pane_windows  TUMBLE, HOP and CUMULATE; panes: the arithmetic of windows that consist of panes
row_windows   windows that depend on the rows: SESSION, TUMBLE_ROW
joining       window join, also the semi join of streams; ranking: window top-N and deduplication
netting       net rows of a changelog over windows
emitting      when windows are emitted; watermarks: a watermark that advances although a source is idle
"""

from spark_client.windows.joining import window_join
from spark_client.windows.pane_windows import cumulate, hop, tumble
from spark_client.windows.ranking import window_deduplicate, window_top_n
from spark_client.windows.row_windows import session, tumble_rows
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
