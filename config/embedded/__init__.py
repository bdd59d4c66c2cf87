"""Everything Holdfast needs, as child processes of one command on one machine."""
