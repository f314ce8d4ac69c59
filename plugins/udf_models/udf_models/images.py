"""Images in requests: a URL, or the bytes of a file as a data URL."""

import base64

from udf_models.client import ModelError
from udf_models.models import TOKEN_BYTES, Model

__all__ = ["IMAGE_BYTES", "image_url"]

IMAGE_BYTES = 1_000 * TOKEN_BYTES
"""Estimate of the cost of an image as bytes of a prompt: services charge some hundred to two thousand tokens."""
_KINDS = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}


def image_url(image: str | bytes, model: Model) -> str:
    """What the request names. Raises ModelError, without a part of the image, if it is no image or no URL of one."""
    if isinstance(image, str):
        if not image.startswith(("https://", "http://", "data:image/")):
            raise ModelError(f"model {model.name!r}: image is neither an http(s) URL, nor data:image/..., nor bytes")
        return image
    kind = next((kind for beginning, kind in _KINDS.items() if image.startswith(beginning)), None)
    if image[:4] == b"RIFF" and image[8:12] == b"WEBP":
        kind = "webp"
    if kind is None:
        raise ModelError(f"model {model.name!r}: image has {len(image)} bytes that are neither PNG, JPEG, GIF nor WebP")
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
