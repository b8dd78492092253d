"""What `buildfarm verify` and `buildfarm inventory` print: text, JSON, Markdown and SARIF."""
