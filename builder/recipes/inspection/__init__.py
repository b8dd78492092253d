"""The inspection of a source: reads its files, runs none of them, and drafts a recipe."""
