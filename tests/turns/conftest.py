"""Scripted services for the tests in this directory."""

from tests.support.scripted import *  # noqa: F403
