"""What was said, made searchable: vectors and words that are never stale."""
