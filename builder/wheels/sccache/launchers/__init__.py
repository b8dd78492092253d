"""Compiler wrappers (launchers) that call each compiler through sccache, and scripts that start and stop sccache.

Standard library only, see `builder.wheels.build_scripts`.
"""
