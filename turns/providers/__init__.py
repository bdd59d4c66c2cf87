"""Adapters to services that write text: bytes in, our own values out."""
