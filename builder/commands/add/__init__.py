"""`buildfarm add`: writes a recipe for a source of others, and adds it to matrix.yaml."""
