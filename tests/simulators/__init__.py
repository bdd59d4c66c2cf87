"""Scripted services on the loopback that speak real bytes, in a thread or as a process.

A script says reply by reply, step by step what goes over the wire. Every request is recorded at
the service, so a test reads from outside how often it was really asked. Gates hold a reply
until the test opens them: the test waits for a gate to be reached, then does its worst, then
opens it.
"""
