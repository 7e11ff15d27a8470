"""The engines behind the gateway: what is known of them, which of them a call goes to, and how it gets there."""
