"""Downloads and patches the source of a recipe; downloads official wheels."""
