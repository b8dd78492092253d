/* Exports a name that another library exports too: whoever is loaded first wins for both. */
int *planted_state = 0;
