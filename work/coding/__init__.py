"""Coding jobs: a worktree of their own, tools that stay inside it, programs under guard."""
