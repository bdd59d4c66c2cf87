"""Conversations, text turns, their tools, the live view and the page."""
