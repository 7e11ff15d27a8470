"""What the wire contract says in plain Python: nothing in here imports grpc or protobuf, so that all may use it."""
