"""Tests of `buildfarm doctor`: small real environments with stand-ins of torch, and what mends them."""
