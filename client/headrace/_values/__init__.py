"""Values of Python from and into messages of the wire."""
