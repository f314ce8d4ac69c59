"""Refuses paths with credentials, which plans, logs and errors would show."""

import re

from spark_client.base.errors import PlanError

__all__ = ["require_no_credentials"]

_PASSWORD = re.compile(r"[A-Za-z0-9+.-]+://[^/@]*:[^/@]*@|.*[?&](access_key|secret_key|password|token)=", re.IGNORECASE)


def require_no_credentials(path: str, where: str) -> None:
    """Raise PlanError, which does not show the path, if it has credentials. `where` is the function of the user."""
    if _PASSWORD.match(path):
        raise PlanError(f"{where}: the path has credentials; set them in the environment of the workers instead")
