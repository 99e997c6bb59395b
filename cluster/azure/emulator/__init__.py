"""Azure Resource Manager as far as nodes need it, on the loopback: for tests, demos and rehearsals."""
