"""Delegated jobs: work that outlives the worker that began it."""
