"""Rules of the wire contract in plain Python, without grpc and protobuf, so that all parts may import them."""
