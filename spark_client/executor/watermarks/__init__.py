"""Advances the watermark of a stream whose source is idle."""
