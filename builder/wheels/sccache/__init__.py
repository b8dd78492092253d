"""The compiler cache: configures sccache and reads its statistics."""
