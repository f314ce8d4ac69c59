"""Sends prompts to a service with Daft and prints the seconds; run in the virtual environment of peers.

Arguments: the URL of the service, a text that makes the prompts new, and their number.
"""

import sys
import time

import daft  # type: ignore[import-not-found]
from daft.functions import prompt  # type: ignore[import-not-found]


def main() -> None:
    url, what, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
    daft.set_provider("openai", api_key="none", base_url=url)
    # A second frame in one process hangs, so there is no warm-up.
    frame = daft.from_pydict({"prompt": [f"{what}: summarize ticket {number}" for number in range(rows)]})
    answer = prompt(frame["prompt"], model="scripted", provider="openai", use_chat_completions=True)
    began = time.perf_counter()
    answered = frame.with_column("answer", answer).collect().to_pydict()["answer"]
    seconds = time.perf_counter() - began
    assert len(set(answered)) == rows
    print(seconds)


if __name__ == "__main__":
    main()
