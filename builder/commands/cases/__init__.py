"""`buildfarm cases`: drafts a cases.py from a finished wheel."""
