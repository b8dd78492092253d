"""What the store and the container engine keep for buildfarm: sizes, last use, and the reports of earlier runs."""
