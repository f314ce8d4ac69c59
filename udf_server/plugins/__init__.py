"""Plugins: found, loaded, asked for their functions and owners, and checked."""
