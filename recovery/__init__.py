"""The kernel: who is alive, who may write, and what happens to work whose owner died."""
