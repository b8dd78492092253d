"""`buildfarm init`: starts a project with a new extension."""
