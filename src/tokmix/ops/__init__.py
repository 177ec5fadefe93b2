"""The operations inside the mixers: each folder holds a plain-torch reference that defines one."""
