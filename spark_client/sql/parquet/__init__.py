"""Parquet files in FROM that workers read."""
