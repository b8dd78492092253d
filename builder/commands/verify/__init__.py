"""`buildfarm verify` and `buildfarm inventory`: find the wheels and the symbol inventories, and judge the wheels."""
