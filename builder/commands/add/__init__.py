"""`buildfarm add`: writes a recipe for an upstream project, and adds the recipe to matrix.yaml."""
