"""LoRA adapters: what their files say, checked against the model that they are for."""
