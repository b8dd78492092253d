/* Exports a symbol that libkernels.so exports too: the library loaded first provides it for both. */
int *sample_state = 0;
