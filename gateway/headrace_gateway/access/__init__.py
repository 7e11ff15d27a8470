"""Who may call the gateway, what each API key allows, and how much."""
