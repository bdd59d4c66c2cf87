"""Composition root: settings, HTTP and worker entry points, and the embedded stack."""
