"""Small extensions with real ops: one that is sound, one with a fault in every op, and what they are tried beside."""
