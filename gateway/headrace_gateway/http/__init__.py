"""OpenAI's and Anthropic's APIs over HTTP: a thin layer over the calls that the gateway serves over gRPC."""
