"""Settings that contradict each other are refused before anything runs."""
