"""Records of builds: the toolchain, the record inside the wheel, and the statistics that the store keeps."""
