"""Process-wide settings that make a server of many small calls faster. The effect of each was measured."""

import contextlib
import ctypes
import gc

__all__ = ["return_memory", "tune_process"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def tune_process() -> None:
    """Change the settings. Call it once, after plugins were loaded and before serving.

    The garbage collector does not traverse objects that exist now again. It collects the youngest generation every
    50,000 allocations instead of 700, because a thousand rows in flight quickly make and free that number. The
    allocator keeps buffers of a batch's size for the next batch instead of mapping and unmapping them each time
    (glibc's mallopt(3); other C libraries do not have it).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    _call_glibc("mallopt", _M_MMAP_THRESHOLD, 64 << 20)
    _call_glibc("mallopt", _M_TRIM_THRESHOLD, 256 << 20)


def return_memory() -> None:
    """Return freed memory to the system, such as that of threads that have ended. It takes some milliseconds."""
    _call_glibc("malloc_trim", 0)


def _call_glibc(function: str, *arguments: int) -> None:
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library does not have it
        getattr(ctypes.CDLL(None), function)(*arguments)
