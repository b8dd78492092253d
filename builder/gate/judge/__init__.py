"""The judge: a process that never imports the extension. It gets the results of ops as data and compares them."""
