"""HyperMixer: An MLP-based Low Cost Alternative to Transformers (Mai et al., ACL 2023), claim by claim."""
