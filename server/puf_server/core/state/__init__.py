"""Records of the state: frozen values, one module per kind of record."""
