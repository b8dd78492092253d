"""What is wanted: axes, configuration, compatibility facts, the plan."""
