"""Environments of groups: what their plugins need is resolved into a lock, and installed into a folder each."""
