"""Experimental: wheel variants (drafts of PEP 825 and PEP 850) of published wheels, in a path of their own."""
