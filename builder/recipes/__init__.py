"""Recipes for sources that have none: fetch and pin a source, inspect it without running it, write extension.yaml."""
