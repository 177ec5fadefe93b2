"""Which input tokens an output depends on."""
