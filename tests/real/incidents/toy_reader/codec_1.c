/* Version 1 of a library that two packages bundle: its tables exist only after a call that version 2 does not need. */
static const int *tables;
const int *codec_tables(void) { return tables; }
