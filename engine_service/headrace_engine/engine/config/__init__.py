"""The configs of requests and models: fields, defaults, and what is refused or warned of."""
