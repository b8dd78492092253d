"""Scripts that run before and after a compile, in the container of the build or on this machine.

They and `builder.wheels.sccache.launchers` import the standard library and each other only, because a container gets
these two folders and nothing else of buildfarm. They run under the image's Python for tools, or under buildfarm's own.
`builder.wheels.scripts` starts them.
"""
