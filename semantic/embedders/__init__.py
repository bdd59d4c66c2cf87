"""What turns texts into vectors: a service, or weights on this machine."""
