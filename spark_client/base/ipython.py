"""The shell of IPython or Jupyter in which a driver runs, if it runs in one."""

import sys
from typing import Any

__all__ = ["ipython_shell"]


def ipython_shell() -> Any:
    """The shell that runs this process's cells; None outside of IPython and Jupyter. It does not import IPython."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None
