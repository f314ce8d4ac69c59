"""Refuses paths with credentials, which plans, logs and errors would show."""

from remote_udf.credentials import has_credentials
from spark_client.base.errors import PlanError

__all__ = ["require_no_credentials"]


def require_no_credentials(path: str, where: str) -> None:
    """Raise PlanError, which does not show the path, if it has credentials. `where` is the function of the user."""
    if has_credentials(str(path)):
        raise PlanError(
            f"{where}: the path has credentials, such as a password, a key or a token; set them in the environment of "
            "the workers instead"
        )
