"""Data that goes from the process of the extension to the judge."""
