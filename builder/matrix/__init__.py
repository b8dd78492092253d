"""Planning: matrix.yaml, recipes, compat.yaml (facts about torch and CUDA), and the plan."""
